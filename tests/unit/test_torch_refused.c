/* Files of PyTorch's kind that must be refused: pickles that ask for more than a state dict does, and damage.
 */
#include <check.h>
#include <stdint.h>

#include "torch_files.h"

static void check_refused(const char *why)
{
    dp_error err = {0};
    dp_torch_file *file;
    unsigned char *copy;
    ck_assert_msg(parse(made.bytes, made.size, &file, &copy, &err) == DP_ERROR_IO, "accepted; wanted: %s",
                  why);
    ck_assert_msg(strstr(err.message, "cannot read 'the-file': ") == err.message, "%s", err.message);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s (wanted: %s)", err.message, why);
    for (const char *c = err.message; *c; c++)
        ck_assert_msg((unsigned char)*c >= 0x20, "not one line: %s", err.message);
    free(copy);
}

/* ---- hostile pickles ---- */

typedef struct refusal {
    const char *pickle;
    size_t size;
    const char *why;
} refusal;

#define TENSOR_OF(offset, size, strides) \
    "\x80\2}" TEXT("\1", "w") REBUILD(STORAGE, offset, size, strides) "s."

static const refusal refusals[] = {
    /* functions */
    {LITERAL("\x80\2"
             "cos\nsystem\n(" TEXT("\5", "touch") "tR."),
     "asks for 'os.system'"},
    {LITERAL("\x80\4" TEXT("\5", "posix") TEXT("\6", "system") "\x93" TEXT("\1", "a") "\x85R."),
     "'posix.system'"},
    {LITERAL("\x80\2"
             "cbuiltins\neval\n."),
     "'builtins.eval'"},
    {LITERAL("\x80\2"
             "c\na\x1b[2J\n."),
     "'.a?[2J'"},
    {LITERAL("\x80\2"
             "ctorch._utils\n_rebuild_sparse_tensor\n."),
     "'torch._utils._rebuild_sparse_tensor'"},
    {LITERAL("\x80\2(" TEXT("\1", "a") "ios\nsystem\n."), "opcode INST"},
    {LITERAL("\x80\2(o."), "opcode OBJ"},
    {LITERAL("\x80\2\x82\1."), "opcode EXT1"},
    {LITERAL("\x80\2P1\n."), "opcode PERSID"},
    {LITERAL("\x80\2K\1)R."), "calls something that is no function"},
    {LITERAL("\x80\2"
             "ctorch\nSize\nNR."),
     "calls something that is no function"},
    /* broken machines */
    {LITERAL("\x80\2\xff."), "no opcode 0xff"},
    {LITERAL("\x80\1."), "protocol 1"},
    {LITERAL("\x80\2."), "stack runs empty"},
    {LITERAL("\x80\2R"), "stack runs empty"},
    {LITERAL("\x80\2N(\x85."), "stack runs empty"},
    {LITERAL("\x80\2t."), "mark is missing"},
    {LITERAL("\x80\2N(."), "within a container"},
    {LITERAL("\x80\2}(Nu."), "a key without a value"},
    {LITERAL("\x80\2NNNs."), "takes none"},
    {LITERAL("\x80\2NNb."), "attributes for something that has none"},
    {LITERAL("\x80\2h\5."), "not put into its memo"},
    {LITERAL("\x80\2Nr\xff\xff\xff\xff."), "memo number beyond"},
    {LITERAL("\x80\2"
             "ccollections\nOrderedDict\n]Na\x85R."),
     "else than pairs"},
    {LITERAL("\x80\2\x8b\xff\xff\xff\x7f\1."), "ends after"},
    {LITERAL("\x80\2\x8d\xff\xff\xff\xff\xff\xff\xff\xff."), "ends after"},
    {LITERAL("\x80\2X\xff\xff\xff\xff."), "ends after"},
    /* no state dict */
    {LITERAL("\x80\2N."), "no state dict was found:"},
    {LITERAL("\x80\2}(" TEXT("\3", "net") "}" TEXT("\3", "acc") "K\1K\1Nu."), "found among 'net', 'acc'"},
    {LITERAL("\x80\2}" TEXT("\5", "model") "}" TEXT("\1", "w") "Nss."),
     "no state dict was found among 'model'"},
    /* tensors */
    {LITERAL("\x80\2}(" WEIGHT WEIGHT "u."), "two tensors 'w'"},
    {LITERAL("\x80\2}K\1" TENSOR "s."), "not text"},
    {LITERAL("\x80\2}" TEXT("\1", "\0") TENSOR "s."), "not text"},
    {LITERAL("\x80\2}" TEXT("\1", "\xff") TENSOR "s."), "not UTF-8"},
    {LITERAL(TENSOR_OF("K\1", SIZE, STRIDES)), "beyond the 6 elements"},
    {LITERAL(TENSOR_OF("J\xff\xff\xff\xff", SIZE, STRIDES)), "not known"},
    {LITERAL(TENSOR_OF("K\0", "K\2J\xff\xff\xff\xff\x86", STRIDES)), "not known"},
    {LITERAL(TENSOR_OF("K\0", SIZE, "K\3J\xff\xff\xff\xff\x86")), "not known"},
    {LITERAL(TENSOR_OF("K\0", SIZE, "K\1\x85")), "not known"},
    {LITERAL(TENSOR_OF("K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t")),
     "not known"},
    {LITERAL(TENSOR_OF("K\0", SIZE, "K\4K\1\x86")), "beyond the 6 elements"},
    {LITERAL(TENSOR_OF("K\0", SIZE, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\1\x86")),
     "beyond the 6 elements"},
    {LITERAL(TENSOR_OF("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", SIZE, STRIDES)), "beyond the 6 elements"},
    {LITERAL(TENSOR_OF("K\0", "J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", "K\0K\0\x86")),
     "too large for any file"},
    {LITERAL(TENSOR_OF("K\0", "J\0\0\1\0J\0\0\1\0\x86", "K\0K\0\x86")), "far more of it than the file holds"},
    {LITERAL("\x80\2}" TEXT("\1", "w") "ctorch.nn.parameter\nParameter\n)\x81s."), "not known"},
    {LITERAL("\x80\2}" TEXT("\1", "w") REBUILD("N", "K\0", SIZE, STRIDES) "s."), "where its contents are"},
    {LITERAL("\x80\2}" TEXT("\1", "w") REBUILD(STORAGE_OF("Size", "0", "K\6"), "K\0", SIZE, STRIDES) "s."),
     "'torch.Size', which is none"},
    {LITERAL("\x80\2}" TEXT("\1", "w")
                 REBUILD(STORAGE_OF("FloatStorage", "0", "K\7"), "K\0", SIZE, STRIDES) "s."),
     "its storage of 7 elements has 24 bytes alone"},
    {LITERAL("\x80\2}" TEXT("\1", "w")
                 REBUILD(STORAGE_OF("DoubleStorage", "0", "K\6"), "K\0", SIZE, STRIDES) "s."),
     "6 elements"},
};

START_TEST(what_state_dicts_do_not_need_is_refused)
{
    const refusal *r = &refusals[_i];
    make_zip(r->pickle, r->size);
    check_refused(r->why);
    make_legacy(r->pickle, r->size);
    check_refused(""); /* which may be for another reason: its storage is there */
}
END_TEST

static void check_repeated(const char *begin, size_t begin_size, const char *again, size_t again_size,
                           int times, const char *end, size_t end_size, const char *why)
{
    static buffer pickle;
    pickle.size = 0;
    put(&pickle, begin, begin_size);
    for (int i = 0; i < times; i++)
        put(&pickle, again, again_size);
    put(&pickle, end, end_size);
    begin_zip();
    add("x/data.pkl", pickle.bytes, pickle.size);
    end_zip();
    check_refused(why);
}

START_TEST(depth_and_memory_are_bounded)
{
    check_repeated(LITERAL("\x80\2"), LITERAL("("), 257, LITERAL("."), "nests deeper than 256");
    /* 40,000 lists, each in the next, and tuples in tuples: nothing recurses */
    check_repeated(LITERAL("\x80\2]"), LITERAL("\x85"), 100000, LITERAL("."), "no state dict");
    check_repeated(LITERAL("\x80\2]"), LITERAL("q\0]h\0a"), 20000, LITERAL("."), "no state dict");
    /* a list in itself; 2^20000 leaves */
    check_repeated(LITERAL("\x80\2]q\0"), LITERAL("h\0a"), 1, LITERAL("."), "no state dict");
    check_repeated(LITERAL("\x80\2N"), LITERAL("q\0h\0\x86"), 20000, LITERAL("."), "no state dict");
    /* one list of pairs copied into many dictionaries: 4 bytes make 2,000 items */
    static char many[5000 * 4 + 200];
    size_t n = 0;
    memcpy(many, "\x80\2]q\0(", 6);
    n = 6;
    memcpy(many + n, "NN\x86q\1", 5);
    n += 5;
    for (int i = 1; i < 1000; i++, n += 2)
        memcpy(many + n, "h\1", 2);
    memcpy(many + n, "eccollections\nOrderedDict\nq\2", 28);
    n += 28;
    check_repeated(many, n, LITERAL("h\2h\0\x85R"), 10000, LITERAL("."), "more than 4194304 items");
}
END_TEST

/* ---- damaged files ---- */

/* Every shorter file is refused, and a wrong byte anywhere does no harm. */
START_TEST(damage_is_noticed_or_harmless)
{
    for (int kind = 0; kind < 2; kind++) {
        if (kind)
            make_legacy(LITERAL(SOUND));
        else
            make_zip(LITERAL(SOUND));
        dp_torch_file *file;
        unsigned char *copy;
        dp_error err = {0};
        size_t whole = made.size;
        for (size_t size = 0; size < whole; size++) {
            ck_assert_int_eq(parse(made.bytes, size, &file, &copy, &err), DP_ERROR_IO);
            free(copy);
        }
        for (size_t i = 0; i < whole; i++) {
            for (int bit = 0; bit < 8; bit++) {
                made.bytes[i] ^= (unsigned char)(1 << bit);
                dp_status status = parse(made.bytes, whole, &file, &copy, &err);
                ck_assert(status == DP_OK || status == DP_ERROR_IO);
                if (status == DP_OK)
                    dp_torch_close(file);
                free(copy);
                made.bytes[i] ^= (unsigned char)(1 << bit);
            }
        }
        check_reads(six);
    }
}
END_TEST

START_TEST(legacy_files_must_be_whole)
{
    make_legacy(refusals[0].pickle, refusals[0].size);
    check_refused(refusals[0].why);
    make_legacy(LITERAL(SOUND));
    made.bytes[4] ^= 1;
    check_refused("not one of torch.save's");
    make_legacy(LITERAL(SOUND));
    made.bytes[18] ^= 1;
    check_refused("format is not 1001");
    make_legacy(LITERAL(SOUND));
    unsigned char *little = memchr(made.bytes + 21, 0x88, 40);
    *little = 0x89;
    check_refused("big-endian");
    make_legacy(LITERAL(SOUND));
    made.bytes[made.size - sizeof six - 8] = 7;
    check_refused("a storage of 7 elements is said to have 6");
    make_legacy(LITERAL("\x80\2}(" TEXT("\1", "w")
                            REBUILD(STORAGE_OF("FloatStorage", "1", "K\6"), "K\0", SIZE, STRIDES) "u."));
    check_refused("no tensor uses");
    made.size = 512;
    memset(made.bytes, 0, made.size);
    memcpy(made.bytes + 257, "ustar", 5);
    check_refused("tar format");
}
END_TEST

START_TEST(archives_must_be_whole)
{
    begin_zip();
    add("x/version", "3\n", 2);
    end_zip();
    check_refused("without data.pkl");
    begin_zip();
    add("x/data.pkl", LITERAL(SOUND));
    end_zip();
    check_refused("storage is not in the file");
    begin_zip();
    add("x/data.pkl", LITERAL(SOUND));
    add_as("x/data/0", six, sizeof six, 0, 0, 1);
    end_zip();
    check_refused("entry 'x/data/0' of the archive does not have its checksum");
    begin_zip();
    add_as("x/data.pkl", LITERAL(SOUND), 0, 8, 0);
    end_zip();
    check_refused("compressed");
    begin_zip();
    add_as("x/data.pkl", LITERAL(SOUND), 1, 0, 0);
    end_zip();
    check_refused("encrypted");
    begin_zip();
    add("x/data.pkl", LITERAL(SOUND));
    add("x/data.pkl", LITERAL(SOUND));
    end_zip();
    check_refused("the same name");
    begin_zip();
    add("x/data.pkl", LITERAL(SOUND));
    add("x/constants.pkl", "", 0);
    end_zip();
    check_refused("TorchScript");
    begin_zip();
    add("x/data.pkl", LITERAL(SOUND));
    add("x/byteorder", "big", 3);
    end_zip();
    check_refused("big-endian");
    make_zip(LITERAL(SOUND));
    made.bytes[30] = 'y'; /* the local header's name */
    check_refused("not where the directory says");
    make_zip(LITERAL(SOUND));
    made.bytes[made.size - 6] ^= 1; /* where the directory begins */
    check_refused("damaged");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("torch_refused");
    TCase *c = tcase_create("torch_refused");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, what_state_dicts_do_not_need_is_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(c, depth_and_memory_are_bounded);
    tcase_add_test(c, damage_is_noticed_or_harmless);
    tcase_add_test(c, legacy_files_must_be_whole);
    tcase_add_test(c, archives_must_be_whole);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

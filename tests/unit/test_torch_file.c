/* PyTorch's files: those that PyTorch wrote, others made byte by byte, and what must be refused. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <zlib.h>

#include "io/torch_file.h"
#include "io/weights_file.h"
#include "scratch.h"

#define CORPUS "tests/fuzz/corpus/torch/"

/* ---- making files by hand ---- */

typedef struct buffer {
    unsigned char bytes[1 << 17];
    size_t size;
} buffer;

static buffer made, central;
static int entries;

static void put(buffer *b, const void *bytes, size_t n)
{
    ck_assert_uint_le(n, sizeof b->bytes - b->size);
    memcpy(b->bytes + b->size, bytes, n);
    b->size += n;
}

static void put_number(buffer *b, uint64_t value, int width)
{
    for (int i = 0; i < width; i++, value >>= 8)
        put(b, &(unsigned char){(unsigned char)value}, 1);
}

#define LITERAL(text) (text), sizeof(text) - 1

/* Opcodes; texts have their length before them. */
#define TEXT(length, text) "\x8c" length text
#define STORAGE_OF(class, key, elements) \
    "(" TEXT("\7", "storage") "ctorch\n" class "\n" TEXT("\1", key) TEXT("\3", "cpu") elements "NtQ"
#define STORAGE STORAGE_OF("FloatStorage", "0", "K\6")
#define REBUILD(storage, offset, size, strides) \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage offset size strides "\x89)tR"
#define SIZE    "K\2K\3\x86"
#define STRIDES "K\3K\1\x86"
#define TENSOR  REBUILD(STORAGE, "K\0", SIZE, STRIDES)
#define WEIGHT  TEXT("\1", "w") TENSOR
#define SOUND   "\x80\2}(" WEIGHT "u."

static const float six[6] = {0, 0.5F, 1, 1.5F, 2, 2.5F};

/* A legacy file around a pickle, with one storage "0" of six floats. */
static void make_legacy(const char *pickle, size_t size)
{
    made.size = 0;
    put(&made, LITERAL("\x80\2\x8a\x0al\xfc\x9c"
                       "F\xf9 j\xa8P\x19."));
    put(&made, LITERAL("\x80\2M\xe9\3."));
    put(&made, LITERAL("\x80\2}" TEXT("\x0d", "little_endian") "\x88s."));
    put(&made, pickle, size);
    put(&made, LITERAL("\x80\2]" TEXT("\1", "0") "a."));
    put_number(&made, 6, 8);
    put(&made, six, sizeof six);
}

static void begin_zip(void)
{
    made.size = central.size = 0;
    entries = 0;
}

static void add_as(const char *name, const void *data, size_t size, int flags, int method, uint32_t checksum)
{
    size_t at = made.size, length = strlen(name);
    put(&made, "PK\3\4", 4);
    put(&central, "PK\1\2", 4);
    put_number(&central, 0, 2);
    for (int k = 0; k < 2; k++) {
        buffer *b = k ? &central : &made;
        put_number(b, 0, 2);
        put_number(b, (uint64_t)flags, 2);
        put_number(b, (uint64_t)method, 2);
        put_number(b, 0, 4);
        put_number(b, checksum, 4);
        put_number(b, size, 4);
        put_number(b, size, 4);
        put_number(b, length, 2);
        put_number(b, 0, 2);
    }
    put(&made, name, length);
    put(&made, data, size);
    put_number(&central, 0, 10);
    put_number(&central, at, 4);
    put(&central, name, length);
    entries++;
}

static void add(const char *name, const void *data, size_t size)
{
    add_as(name, data, size, 0, 0, (uint32_t)crc32(0, data, (uInt)size));
}

static void end_zip(void)
{
    size_t at = made.size;
    put(&made, central.bytes, central.size);
    put(&made, "PK\5\6\0\0\0\0", 8);
    put_number(&made, (uint64_t)entries, 2);
    put_number(&made, (uint64_t)entries, 2);
    put_number(&made, central.size, 4);
    put_number(&made, at, 4);
    put_number(&made, 0, 2);
}

static void make_zip(const char *pickle, size_t size)
{
    begin_zip();
    add("x/data.pkl", pickle, size);
    add("x/data/0", six, sizeof six);
    end_zip();
}

/* ---- reading them ---- */

/* Reads a copy that ends where its memory ends, so that a sanitizer sees what is beyond. */
static dp_status parse(const void *bytes, size_t size, dp_torch_file **out, unsigned char **copy,
                       dp_error *err)
{
    *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(*copy);
    memcpy(*copy, bytes, size);
    dp_status status = dp_torch_parse(*copy, size, "the-file", out, err);
    for (int i = 0; status == DP_OK && i < dp_torch_count(*out); i++)
        for (int64_t e = 0; e < dp_torch_at(*out, i)->elements; e++)
            (void)dp_tensor_float(dp_torch_at(*out, i), e);
    if (status != DP_OK)
        ck_assert_ptr_null(*out);
    return status;
}

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

/* What was made holds w alone, [2, 3] with these values. */
static void check_reads(const float values[6])
{
    dp_error err = {0};
    dp_torch_file *file;
    unsigned char *copy;
    ck_assert_msg(parse(made.bytes, made.size, &file, &copy, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_torch_count(file), 1);
    const dp_tensor *t = dp_torch_at(file, 0);
    ck_assert_str_eq(t->name, "w");
    ck_assert_int_eq(t->dtype, DP_F32);
    ck_assert_int_eq(t->rank, 2);
    ck_assert_int_eq(t->shape[0], 2);
    ck_assert_int_eq(t->shape[1], 3);
    ck_assert_uint_eq(t->bytes, 24);
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq(dp_tensor_float(t, i), values[i]);
    dp_torch_close(file);
    free(copy);
}

/* ---- what PyTorch 1.13 wrote; see tests/fuzz/make_torch_corpus.py ---- */

typedef struct expected {
    const char *name;
    dp_dtype dtype;
    int rank;
    int64_t shape[3];
    float values[24];
} expected;

static void check_sample(const char *name, const expected *wanted, int count)
{
    static const char *const kinds[] = {"zip", "legacy"};
    for (int k = 0; k < 2; k++) {
        char path[128];
        dp_weights_file *file;
        dp_error err = {0};
        snprintf(path, sizeof path, CORPUS "%s-%s", kinds[k], name);
        ck_assert_msg(dp_weights_file_open(path, &file, &err) == DP_OK, "%s", err.message);
        ck_assert(dp_weights_file_is_torch(file));
        ck_assert_ptr_null(dp_weights_file_metadata(file, "model"));
        ck_assert_int_eq(dp_weights_file_count(file), count);
        for (int i = 0; i < count; i++) {
            const dp_tensor *t = dp_weights_file_at(file, i);
            ck_assert_str_eq(t->name, wanted[i].name);
            ck_assert_int_eq(t->dtype, wanted[i].dtype);
            ck_assert_int_eq(t->rank, wanted[i].rank);
            for (int d = 0; d < t->rank; d++)
                ck_assert_int_eq(t->shape[d], wanted[i].shape[d]);
            for (int64_t e = 0; e < t->elements; e++)
                ck_assert_msg(dp_tensor_float(t, e) == wanted[i].values[e], "%s: %s[%lld]", path, t->name,
                              (long long)e);
        }
        dp_weights_file_close(file);
    }
}

START_TEST(views_of_one_storage_are_read_by_their_strides)
{
    expected wanted[] = {
        {"whole", DP_F32, 2, {3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {"transposed", DP_F32, 2, {4, 3}, {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
        {"part", DP_F32, 2, {2, 2}, {5, 6, 9, 10}},
        {"column", DP_F32, 1, {3}, {3, 7, 11}},
        {"expanded", DP_F32, 2, {2, 3}, {7, 7, 7, 7, 7, 7}},
        {"scalar", DP_I64, 0, {0}, {5}},
        {"empty", DP_F32, 2, {0, 3}, {0}},
        {"module.permuted", DP_I16, 3, {4, 2, 3}, {0}},
    };
    for (int i = 0; i < 24; i++) /* index (a, b, c) of the permuted was (b, c, a) */
        wanted[7].values[i] = (float)(i / 3 % 2 * 12 + i % 3 * 4 + i / 6);
    check_sample("views", wanted, 8);
}
END_TEST

START_TEST(every_dtype_is_read)
{
    static const expected wanted[] = {
        {"float32", DP_F32, 1, {3}, {0, 1, 3}}, {"float64", DP_F64, 1, {3}, {0, 1, 3}},
        {"float16", DP_F16, 1, {3}, {0, 1, 3}}, {"bfloat16", DP_BF16, 1, {3}, {0, 1, 3}},
        {"int64", DP_I64, 1, {3}, {0, 1, 3}},   {"int32", DP_I32, 1, {3}, {0, 1, 3}},
        {"int16", DP_I16, 1, {3}, {0, 1, 3}},   {"int8", DP_I8, 1, {3}, {0, 1, 3}},
        {"uint8", DP_U8, 1, {3}, {0, 1, 3}},    {"bool", DP_BOOL, 1, {3}, {0, 1, 1}},
    };
    check_sample("dtypes", wanted, 10);
}
END_TEST

START_TEST(state_dicts_are_found_where_they_usually_are)
{
    /* after one step of SGD with gradient 1 and rate 0.1 */
    static const expected wanted[] = {{"weight", DP_F32, 2, {1, 2}, {0.9F, 1.9F}},
                                      {"bias", DP_F32, 1, {1}, {2.9F}}};
    check_sample("checkpoint", wanted, 2);
    check_sample("parameters", wanted, 2);
    check_sample("protocol-4", wanted, 2);
}
END_TEST

/* ---- made by hand: sound ---- */

START_TEST(hand_made_files_are_read)
{
    static const float transposed[6] = {0, 1, 2, 0.5F, 1.5F, 2.5F};
    make_legacy(LITERAL(SOUND));
    check_reads(six);
    make_zip(LITERAL(SOUND));
    check_reads(six);
#define ACCEPT(pickle, values)        \
    do {                              \
        make_legacy(LITERAL(pickle)); \
        check_reads(values);          \
        make_zip(LITERAL(pickle));    \
        check_reads(values);          \
    } while (0)
    ACCEPT("\x80\2}" TEXT("\1", "w") REBUILD(STORAGE, "K\0", SIZE, "K\1K\2\x86") "s.", transposed);
    /* under a name, the first of the known ones; what else there is does not matter */
    ACCEPT("\x80\2}(" TEXT("\5", "model") "}" WEIGHT "s" TEXT("\5", "epoch") "K\1u.", six);
    ACCEPT("\x80\2}(" TEXT("\5", "model") "N" TEXT("\x0a", "state_dict") "}" WEIGHT "su.", six);
    ACCEPT("\x80\2}(" WEIGHT TEXT("\1", "n") "NK\7G01234567u.", six);
    /* Python 2's OrderedDict and texts; _rebuild_tensor of before 0.4 */
    ACCEPT("\x80\2"
           "ccollections\nOrderedDict\n](]"
           "U\1w"
           "a"
           "ctorch._utils\n_rebuild_tensor\n(" STORAGE "K\0" SIZE STRIDES "tRa"
           "e\x85R.",
           six);
    /* parameters: a call, an object with its tensor, an object with its state */
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch._utils\n_rebuild_parameter\n(" TENSOR "\x88)tRs.", six);
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch.nn.parameter\nParameter\n" TENSOR "\x85\x81s.", six);
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch.nn.parameter\nParameter\n)\x81(" TENSOR "NNNNtbs.", six);
    /* a size as torch.Size, attributes of the dictionary, a memo, protocol 4's names */
    ACCEPT("\x80\2}" TEXT("\1", "w") REBUILD(STORAGE, "K\0", "ctorch\nSize\n" SIZE "\x85R", STRIDES) "s}b.",
           six);
    ACCEPT("\x80\4\x95\0\0\0\0\0\0\0\0}" TEXT("\1", "w") "\x94" TENSOR "h\0"
                                                         "0s.",
           six);
    ACCEPT("\x80\4}" TEXT("\1", "w") TEXT("\x0c", "torch._utils")
               TEXT("\x12", "_rebuild_tensor_v2") "\x93(" STORAGE "K\0" SIZE STRIDES "\x89)tRs.",
           six);
}
END_TEST

START_TEST(a_view_of_a_legacy_storage_begins_where_it_says)
{
    static const char pickle[] =
        "\x80\2}" TEXT("\1", "w") REBUILD("(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "0")
                                              TEXT("\3", "cpu") "K\6(" TEXT("\1", "1") "K\2K\4ttQ",
                                          "K\1", "K\3\x85", "K\1\x85") "s.";
    make_legacy(LITERAL(pickle));
    dp_error err = {0};
    dp_torch_file *file;
    unsigned char *copy;
    ck_assert_msg(parse(made.bytes, made.size, &file, &copy, &err) == DP_OK, "%s", err.message);
    for (int i = 0; i < 3; i++)
        ck_assert_float_eq(dp_tensor_float(dp_torch_at(file, 0), i), six[3 + i]);
    dp_torch_close(file);
    free(copy);
}
END_TEST

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

/* ---- writing ---- */

START_TEST(what_is_written_is_read)
{
    const double wide[4] = {1, -2, 3e300, 0};
    const uint16_t halves[2] = {0x3c00, 0xc000};
    const int64_t counter = 1LL << 40;
    const uint8_t flags[3] = {1, 0, 1};
    const dp_tensor tensors[] = {
        {.name = "a.weight",
         .dtype = DP_F64,
         .rank = 3,
         .shape = {2, 1, 2},
         .elements = 4,
         .bytes = 32,
         .data = wide},
        {.name = "half", .dtype = DP_F16, .rank = 1, .shape = {2}, .elements = 2, .bytes = 4, .data = halves},
        {.name = "n", .dtype = DP_I64, .elements = 1, .bytes = 8, .data = &counter},
        {.name = "\xc3\xa9",
         .dtype = DP_BOOL,
         .rank = 1,
         .shape = {3},
         .elements = 3,
         .bytes = 3,
         .data = flags},
        {.name = "none", .dtype = DP_BF16, .rank = 2, .shape = {0, 4}, .data = NULL},
    };
    dp_error err = {0};
    dp_weights_file *file;
    ck_assert_msg(dp_torch_write(scratch("out.pt"), tensors, 5, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_weights_file_open(scratch("out.pt"), &file, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_weights_file_count(file), 5);
    for (int i = 0; i < 5; i++) {
        const dp_tensor *t = dp_weights_file_at(file, i);
        ck_assert_str_eq(t->name, tensors[i].name);
        ck_assert_int_eq(t->dtype, tensors[i].dtype);
        ck_assert_int_eq(t->rank, tensors[i].rank);
        for (int d = 0; d < t->rank; d++)
            ck_assert_int_eq(t->shape[d], tensors[i].shape[d]);
        ck_assert_uint_eq(t->bytes, tensors[i].bytes);
        if (t->bytes)
            ck_assert_mem_eq(t->data, tensors[i].data, t->bytes);
    }
    dp_weights_file_close(file);
    ck_assert_int_eq(dp_torch_write(scratch("nowhere/out.pt"), tensors, 5, &err), DP_ERROR_IO);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("torch_file");
    TCase *c = tcase_create("torch_file");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, scratch_make, scratch_remove);
    tcase_add_test(c, views_of_one_storage_are_read_by_their_strides);
    tcase_add_test(c, every_dtype_is_read);
    tcase_add_test(c, state_dicts_are_found_where_they_usually_are);
    tcase_add_test(c, hand_made_files_are_read);
    tcase_add_test(c, a_view_of_a_legacy_storage_begins_where_it_says);
    tcase_add_loop_test(c, what_state_dicts_do_not_need_is_refused, 0, sizeof refusals / sizeof *refusals);
    tcase_add_test(c, depth_and_memory_are_bounded);
    tcase_add_test(c, damage_is_noticed_or_harmless);
    tcase_add_test(c, legacy_files_must_be_whole);
    tcase_add_test(c, archives_must_be_whole);
    tcase_add_test(c, what_is_written_is_read);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

/* What is asked wrongly, and what is asked for help. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

typedef struct mistake {
    const char *line;
    int code;
    const char *text;
} mistake;

static const mistake mistakes[] = {
    {"", 2, "a command is needed"},
    {"trian", 2, "unknown command 'trian'; did you mean 'train'?"},
    {"predictt", 2, "unknown command 'predictt'; did you mean 'predict'?"},
    {"--batch-size 4", 2, "unknown command '--batch-size'"},
    /* options */
    {"train --batchsize 4", 2, "unknown option '--batchsize'; did you mean '--batch-size'?"},
    {"train --batch_siez=4", 2, "unknown option '--batch-siez'; did you mean '--batch-size'?"},
    {"train --epochs 3", 2, "unknown option '--epochs'; did you mean '--n-epoch'?"},
    {"bench --learning-rate 3", 2, "unknown option '--learning-rate'; --help lists"},
    {"train --resume=", 2, "--resume needs auto, never or the name of a directory"},
    {"train --save-every -1", 2, "--save-every '-1'"},
    {"train --keep 0", 2, "--keep '0'"},
    {"train --json", 2, "unknown option '--json'"},
    {"eval --model lenet", 2, "unknown option '--model'"},
    {"train 64", 2, "unexpected argument '64'"},
    {"train -b 64", 2, "unexpected argument '-b'"},
    {"train --", 2, "unexpected argument '--'"},
    {"train --batch-size", 2, "option '--batch-size' needs a value"},
    {"train --quiet=1", 2, "option '--quiet' takes no value"},
    {"train --quiet 1", 2, "unexpected argument '1'"},
    {"train --save=", 2, "--save needs the name of a file"},
    {"train --precision tf32 --data synthetic:8", 2, "--precision tf32 is for CUDA devices"},
    {"train --p2p on --data synthetic:8", 2, "--p2p on is for CUDA devices"},
    {"report", 2, "report needs a run: a log.jsonl, or the directory of one"},
    {"report run", 2, "report needs the name of the page to write: -o FILE"},
    {"report log.jsonl -o log.jsonl", 2, "'log.jsonl' would be written over the log"},
    /* numbers */
    {"train --batch-size 4x", 2, "--batch-size '4x'"},
    {"train --batch-size 0", 2, "--batch-size '0'"},
    {"train --batch-size -4", 2, "--batch-size '-4'"},
    {"train --batch-size 4.5", 2, "--batch-size '4.5'"},
    {"train --batch-size=", 2, "--batch-size ''"},
    {"train --batch-size 99999999999999999999", 2, "--batch-size '99999999999999999999'"},
    {"train --max-steps 99999999999999999999", 2, "a whole number from 1 to 9223372036854775807 is needed"},
    {"train --max-steps -99999999999999999999", 2, "a whole number of at least 1 is needed"},
    {"train --n-epoch 0", 2, "--n-epoch '0'"},
    {"train --max-steps 0", 2, "--max-steps '0'"},
    {"train --lr 0", 2, "--lr '0': a number above 0 is needed"},
    {"train --lr nan", 2, "--lr 'nan'"},
    {"train --lr inf", 2, "--lr 'inf'"},
    {"train --lr 1e999", 2, "--lr '1e999'"},
    {"train --lr 1e39", 2, "--lr '1e39': a number above 0 and at most 3.40282e+38 is needed"},
    {"train --mean 1e999 --std 1", 2, "--mean '1e999': a number of at most 3.40282e+38 is needed"},
    {"train --weight-decay 1e999", 2, "a number of at least 0 and at most 3.40282e+38 is needed"},
    {"train --mean -1e39 --std 1", 2, "--mean '-1e39': a number of at least -3.40282e+38 is needed"},
    {"train --mean x --std 1", 2, "--mean 'x': a number is needed"},
    {"train --lr 0x1p-3", 2, "--lr '0x1p-3'"},
    {"train --lr 0.1.2", 2, "--lr '0.1.2'"},
    {"train --momentum 1", 2, "--momentum '1': a number of at least 0 and below 1 is needed"},
    {"train --momentum -0.1", 2, "--momentum '-0.1'"},
    {"train --weight-decay -1", 2, "--weight-decay '-1'"},
    {"train --valid-split 1", 2, "--valid-split '1'"},
    {"train --accumulation-steps -1", 2, "--accumulation-steps '-1'"},
    {"train --num-workers 0", 2, "--num-workers '0'"},
    {"train --print-freq 0", 2, "--print-freq '0'"},
    {"train --seed -1", 2, "--seed '-1'"},
    {"train --hidden 16,,16", 2, "--hidden '16,,16'"},
    {"train --model mlp --hidden 16,0", 2, "--hidden '0'"},
    {"train --num-classes 0", 2, "--num-classes '0'"},
    {"train --threads-per-device 0", 2, "--threads-per-device '0'"},
    {"train --logical-devices 65", 2, "--logical-devices '65'"},
    {"eval --init x --batch-size 0", 2, "--batch-size '0'"},
    /* names */
    {"train --device gpu", 2, "--device 'gpu'"},
    {"train --device cud", 2, "did you mean 'cuda'?"},
    {"train --optimizer adam", 2, "--optimizer 'adam' is unknown; did you mean 'adamw'?"},
    {"train --loss cross-entropy", 2, "did you mean 'cross_entropy'?"},
    {"train --loss-mode gathered", 2, "did you mean 'gather'?"},
    {"train --lr-scale sqrt", 2, "--lr-scale 'sqrt'"},
    {"train --conv winograd", 2, "--conv 'winograd'"},
    {"train --split even", 2, "--split 'even'"},
    {"train --model lenett", 2, "unknown model 'lenett'; did you mean 'lenet'?"},
    {"train --model resnet19", 2, "unknown model 'resnet19'; did you mean 'resnet18'?"},
    {"train --model-type vgg19", 2, "--model-type 'vgg19' is unknown; did you mean 'vgg16'?"},
    {"train --data mnist", 2, "unknown data 'mnist'"},
    {"train --data synthetic:0", 2, "'synthetic:0'"},
    /* what does not go together, or is of no use */
    {"train --batch-size 8 --batch-per-device 4", 2, "exclude each other"},
    {"train --nesterov --momentum 0", 2, "--nesterov needs a --momentum above 0"},
    {"train --optimizer adamw --nesterov", 2, "--nesterov is for sgd"},
    {"train --optimizer adamw --momentum 0.5", 2, "--momentum is for sgd"},
    {"train --model lenet --dropout 0.5", 2, "no use for --dropout"},
    {"train --model lenet --hidden 64", 2, "no use for --hidden"},
    {"train --width 32", 2, "model 'lenet' has no use for --width"},
    {"train --model resnet18 --filters 16", 2, "no use for --filters"},
    {"train --model vgg16 --deconv", 2, "no use for --deconv"},
    {"train --model unet16 --dropout 0.2", 2, "no use for --dropout"},
    {"train --model lenet --model-type vgg16", 2, "--model-type vgg16 is the model unet16"},
    {"train --max-memory 2T", 2, "--max-memory '2T': a number of bytes is needed"},
    {"train --max-memory 0", 2, "--max-memory '0'"},
    {"train --max-memory 99999999999G", 2, "--max-memory '99999999999G'"},
    {"train --size 32x32", 2, "--size is for synthetic data"},
    {"train --data synthetic:4 --size 32", 2, "--size '32': height and width"},
    {"train --data synthetic:4 --size 0x32", 2, "--size '0x32'"},
    {"train --data synthetic:4 --size 32x32x3", 2, "--size '32x32x3'"},
    {"train --data synthetic:4 --model unet16 --size 40x64", 2, "nearest sizes are 32x64 and 64x64"},
    {"train --mean 0.5", 2, "--mean and --std go together"},
    {"train --init-partial", 2, "--init-partial needs --init"},
    {"train --freeze a,,b", 2, "--freeze 'a,,b'"},
    {"train --data synthetic:64 --loss mse", 2, "--loss mse does not fit the data"},
    {"train --data synthetic:64 --pos-weight 2", 2, "--pos-weight is for --loss bce_with_logits"},
    {"train --data synthetic:4 --batch-size 8 --drop-last --quiet", 2, "do not fill a batch of 8"},
    {"eval", 2, "eval needs --init FILE"},
    /* devices */
    {"train --device cuda", 1, "CUDA is not available: "},
    {"train --data idx:nowhere --logical-devices 2 --split 0,0", 2, "at least one share above 0"},
    {"train --data idx:nowhere --logical-devices 2 --output-device 9", 2, "(cpu:0 to cpu:1 are visible)"},
    {"train --device-ids 0,x", 2, "--device-ids 'x'"},
    {"train --device-ids 0,0 --data synthetic:64 --quiet", 2, "device id 0 is listed twice"},
    {"train --logical-devices 2 --device-ids 0,7 --data synthetic:64 --quiet", 2, "cpu:0 to cpu:1"},
    {"train --logical-devices 2 --device-ids 0 --output-device 1 --data synthetic:64 --quiet", 2,
     "output device 1"},
    {"train --logical-devices 2 --split 1,2,3 --data synthetic:64 --quiet", 2, "3 shares for 2 devices"},
    {"train --logical-devices 2 --split 0,0 --data synthetic:64 --quiet", 2, "share"},
    {"device", 2, "did you mean 'devices'?"},
    {"convert", 2, "convert needs two files, IN and OUT"},
    {"convert a.pt", 2, "convert needs two files"},
    {"convert a.pt b.pt c.pt", 2, "unexpected argument 'c.pt': usage is dptrain convert IN OUT"},
    {"convert -f a.pt", 2, "unexpected argument '-f'"},
    {"convert --batch-size 4", 2, "unknown option '--batch-size'"},
    {"convert a.pt b.onnx", 2, "'b.onnx' must end in .pt, .pth or .safetensors"},
    {"convert a.pt ./a.pt", 2, "written over the file that is converted"},
    {"convert nowhere.pt b.safetensors", 1, "'nowhere.pt'"},
    {"devices --device cuda", 1, "CUDA is not available: "},
    {"devices --logical-devices 0", 2, "--logical-devices '0'"},
    {"devices --batch-size 4", 2, "unknown option '--batch-size'"},
    /* bench: before anything is measured */
    {"bench --data synthetic", 2, "unknown option '--data'"},
    {"bench --batch-sizes 16,0", 2, "--batch-sizes '0'"},
    {"bench --batch-sizes 16,", 2, "--batch-sizes '16,'"},
    {"bench --steps 0", 2, "--steps '0'"},
    {"bench --scaling strange", 2, "--scaling 'strange'"},
    {"bench --model lenet --width 8", 2, "model 'lenet' has no use for --width"},
    {"bench --model unet16 --num-classes 2", 2, "masks have one channel"},
    {"bench --logical-devices 1", 2, "there is only cpu:0 to use"},
    {"bench --logical-devices 3 --device-ids 2", 2, "there is only cpu:2 to use"},
    {"bench --logical-devices 2 --split 1,2,3", 2, "3 shares for 2 devices"},
    {"bench --logical-devices 2 --model resnet18 --size 32x32 --batch-sizes 16,3", 2, "is split into 2,1"},
    {"train --model resnet18_cifar --width 4 --size 8x8 --data synthetic:9 --valid-split 0 --batch-size 4 "
     "--quiet",
     2, "cannot train on one value per channel"},
    {"bench --logical-devices 2 --json .", 1, "cannot write --json '.': Is a directory"},
    {"bench --logical-devices 2 --csv .", 1, "cannot write --csv '.': Is a directory"},
    {"bench --logical-devices 2 --json nowhere/b.json", 1, "--json 'nowhere/b.json'"},
    {"bench --logical-devices 2 --csv .", 1, "--csv '.'"},
    {"bench --logical-devices 2 --csv result --json ./result", 2, "name the same file"},
    /* lessons */
    {"explain", 2, "explain needs a lesson: loss-average, imbalance, batch-size, split, device-ids, "},
    {"explain --json", 2, "explain needs a lesson"},
    {"explain imbalanc", 2, "unknown lesson 'imbalanc'; did you mean 'imbalance'?"},
    {"explain split 5", 2, "unexpected argument '5'"},
    {"explain split --model mlp", 2, "explain split has no use for --model"},
    {"explain loss-average --batch-size 3", 2, "explain loss-average has no use for --batch-size"},
    {"explain speedup --batch-size 3", 2, "explain speedup has no use for --batch-size"},
    {"explain split --devices 65", 2, "--devices '65'"},
    {"explain split --devices 3 --split 1,2", 2, "2 shares for 3 devices"},
    {"explain split --devices 2 --split 0,0", 2, "at least one share above 0"},
    {"explain speedup --link 0", 2, "--link '0': a number above 0"},
    {"explain speedup --compute nan", 2, "--compute 'nan'"},
    {"explain imbalance --logical-devices 1", 2, "there is only cpu:0 to use"},
    {"explain imbalance --logical-devices 2 --output-device 5", 2, "output device 5"},
    {"explain imbalance --logical-devices 2 --split 1,2,3", 2, "3 shares for 2 devices"},
    {"explain batch-size --logical-devices 3 --device-ids 1", 2, "there is only cpu:1 to use"},
    {"explain accumulation --accumulation-steps 1", 2, "--accumulation-steps '1'"},
    /* files that are not there */
    {"train --data idx:nowhere --quiet", 1, "'nowhere'"},
    {"train --data safetensors:nowhere --quiet", 1, "'nowhere'"},
    {"train --data synthetic:64 --init nowhere --quiet", 1, "'nowhere'"},
    {"train --data synthetic:64 --save nowhere/w.safetensors --quiet", 1, "'nowhere/w.safetensors'"},
    {"train --data synthetic:64 --log nowhere/log.jsonl --quiet", 1, "'nowhere/log.jsonl'"},
    {"train --data synthetic:64 --save . --quiet", 1, "it is a directory"},
    {"eval --init nowhere --data synthetic:64", 1, "'nowhere'"},
};

START_TEST(a_mistake_is_one_line_and_an_exit_code)
{
    const mistake *m = &mistakes[_i];
    const run *r = dptrain("%s", m->line);
    assert_fails(r, m->code, m->text);
    ck_assert_str_eq(r->out, "");
    ck_assert(!file_exists("model/model_best.safetensors"));
}
END_TEST

START_TEST(a_message_is_one_line_whatever_was_typed)
{
    assert_fails(dptrain_args((const char *[]){"tr\nain", NULL}), 2, "'tr?ain'");
    assert_fails(dptrain_args((const char *[]){"train", "--data", "", NULL}), 2, "''");
    char endless[5000];
    memset(endless, 'a', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    endless[0] = endless[1] = '-';
    assert_fails(dptrain_args((const char *[]){"train", endless, NULL}), 2, "unknown option");
}
END_TEST

START_TEST(the_environment_is_checked_too)
{
    setenv("DPTRAIN_LOGICAL_DEVICES", "many", 1);
    assert_fails(dptrain("train --data synthetic:64 --quiet"), 2, "DPTRAIN_LOGICAL_DEVICES 'many'");
    setenv("DPTRAIN_LOGICAL_DEVICES", " 3", 1);
    assert_fails(dptrain("train --data synthetic:64 --quiet"), 2, "DPTRAIN_LOGICAL_DEVICES ' 3'");
    setenv("DPTRAIN_LOGICAL_DEVICES", "65", 1);
    assert_fails(dptrain("train --data synthetic:64 --quiet"), 2, "DPTRAIN_LOGICAL_DEVICES '65'");
}
END_TEST

static void assert_help(const run *r)
{
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_contains(r->out, "usage: dptrain");
    for (const char *line = r->out; *line; line += strcspn(line, "\n") + 1)
        ck_assert_msg(strcspn(line, "\n") <= 80, "wider than 80 columns: %s", line);
    ck_assert_msg(!strpbrk(r->out, "{}"), "alternatives of several commands: %s", strpbrk(r->out, "{}"));
}

START_TEST(help_is_on_stdout_and_fits_a_terminal)
{
    assert_help(dptrain("--help"));
    assert_help(dptrain("-h"));
    assert_help(dptrain("train --help"));
    static const char *const commands[] = {"train",   "eval",    "predict", "bench",
                                           "devices", "explain", "convert", "report"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        assert_help(dptrain("%s -h", commands[i]));
    const run *r = dptrain("train --data synthetic:64 --help");
    assert_help(r);
    assert_contains(r->out, "--batch-size B");
    assert_contains(r->out, "[64]");
    assert_lacks(r->out, "--json");
    r = dptrain("eval --help");
    assert_help(r);
    assert_contains(r->out, "--json");
    assert_lacks(r->out, "--lr ");
    assert_contains(r->out, "0: none [as in training]");
    r = dptrain("predict --help");
    assert_contains(r->out, "split over the devices [4 a\n");
    assert_contains(r->out, "a folder for masks");
    r = dptrain("report --help");
    assert_contains(r->out, "the page to write; also -o");
    r = dptrain("explain --help");
    assert_contains(r->out, "[20; imbalance, U-Net: 5]");
    assert_help(dptrain("devices --help"));
    assert_help(dptrain("bench --help"));
    assert_help(dptrain("explain --help"));
    assert_help(dptrain("explain split --help"));
}
END_TEST

/* On CPU devices: GPUs are tests/cli/emulated.c's. */
START_TEST(devices_are_listed_with_their_links)
{
    const run *r = dptrain("devices --device cpu --logical-devices 3");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_contains(r->out, "threads");
    assert_contains(r->out, "\ncpu:2 ");
    assert_contains(r->out, "CUDA_VISIBLE_DEVICES");
    assert_contains(r->out, "peer access");
    assert_lacks(r->out, "damaged");
    r = dptrain("devices --device cpu --logical-devices 9 --json");
    assert_succeeds(r);
    json_t *list = json_loads(r->out, 0, NULL);
    ck_assert_msg(list != NULL, "no JSON: %s", r->out);
    ck_assert_str_eq(string_of(list, "backend"), "cpu");
    ck_assert_uint_eq(json_array_size(json_object_get(list, "devices")), 9);
    const json_t *last = at(json_object_get(list, "devices"), 8), *links = json_object_get(list, "links");
    ck_assert_str_eq(string_of(last, "device"), "cpu:8");
    ck_assert(number_of(last, "threads") >= 1);
    ck_assert(number_of(last, "free_memory_bytes") <= number_of(last, "memory_bytes"));
    ck_assert(json_is_null(json_object_get(last, "uuid")));
    ck_assert_uint_eq(json_array_size(links), 9 * 8);
    for (int i = 0; i < 9 * 8; i++) {
        ck_assert(json_is_true(json_object_get(at(links, i), "intact")));
        ck_assert(json_is_true(json_object_get(at(links, i), "peer_access")));
        ck_assert(number_of(at(links, i), "gb_per_second") > 0);
    }
    json_decref(list);
}
END_TEST

START_TEST(version_and_models_are_listed)
{
    const run *r = dptrain("--version");
    assert_succeeds(r);
    ck_assert_int_eq(strncmp(r->out, "dptrain ", 8), 0);
    r = dptrain("train --model list");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "linear\nmlp\nlenet\nresnet18\nresnet34\nresnet50\nresnet101\nresnet18_cifar\n"
                             "resnet34_cifar\nresnet50_cifar\nresnet101_cifar\nvgg16\nunet16\nunet_resnet34\n"
                             "unet_resnet101\n");
}
END_TEST

START_TEST(a_result_that_cannot_be_written_is_an_error)
{
    assert_fails(dptrain_shell("%s --help >/dev/full"), 1, "cannot write to standard output");
    assert_fails(dptrain_shell("%s train --help >&-"), 1, "cannot write to standard output");
    int ends[2]; /* a pipe that nobody reads */
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], 9), 9);
    close(ends[0]);
    assert_fails(dptrain_shell("%s train --help >&9"), 1, "cannot write to standard output");
}
END_TEST

Suite *usage_suite(void)
{
    Suite *s = suite_create("usage");
    TCase *c = tcase_create("usage");
    tcase_set_tags(c, "usage"); /* left out where each start of the program is slow */
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_loop_test(c, a_mistake_is_one_line_and_an_exit_code, 0, sizeof mistakes / sizeof *mistakes);
    tcase_add_test(c, a_message_is_one_line_whatever_was_typed);
    tcase_add_test(c, the_environment_is_checked_too);
    tcase_add_test(c, help_is_on_stdout_and_fits_a_terminal);
    tcase_add_test(c, devices_are_listed_with_their_links);
    tcase_add_test(c, version_and_models_are_listed);
    tcase_add_test(c, a_result_that_cannot_be_written_is_an_error);
    suite_add_tcase(s, c);
    return s;
}

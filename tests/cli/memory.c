/* --dry-run and --max-memory: what is said before a run is what the run then takes. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "harness.h"

#define SMALL \
    "train --model mlp --hidden 64,32 --data synthetic:40 --n-epoch 1 --logical-devices 3 --batch-size 16 "

START_TEST(a_dry_run_prints_what_a_run_takes)
{
    static const char *const modes[] = {"gather", "replica", "global"};
    const run *r = dptrain(SMALL "--loss-mode %s --optimizer adamw --dry-run", modes[_i]);
    assert_succeeds(r);
    assert_contains(r->out, "model mlp: ");
    assert_contains(r->out, "a batch of 16: 6, 6, 4");
    assert_contains(r->out, "the last of 2: 1, 1, 0");
    assert_contains(r->out, "linear + relu                64  fc1");
    ck_assert(!file_exists("model"));
    char said[65536];
    snprintf(said, sizeof said, "%s", last_line(r->out));
    assert_succeeds(dptrain(SMALL "--loss-mode %s --optimizer adamw --quiet", modes[_i]));
    json_t *devices = read_log("model/log.jsonl", "device");
    for (int k = 0; k < 3; k++) {
        char bytes[32];
        assert_contains(said, dp_format_bytes((uint64_t)number_of(at(devices, k), "peak_total_bytes"), bytes,
                                              sizeof bytes));
    }
    json_decref(devices);
}
END_TEST

START_TEST(every_operation_of_a_network_is_listed)
{
    const run *r =
        dptrain("train --model unet_resnet34 --width 8 --filters 4 --data synthetic:4 --size 64x128 "
                "--batch-size 4 --logical-devices 2 --dry-run");
    assert_succeeds(r);
    assert_contains(r->out, "input 3x64x128, output 1x64x128");
    assert_contains(r->out, "batch_norm2d + add + relu    8x16x32  encoder.layer1.0.bn2");
    assert_contains(r->out, "concat ");
    assert_contains(r->out, "dropout2d");
    assert_contains(r->out, "1x64x128  final");
    assert_lacks(r->out, "encoder.fc");
}
END_TEST

/* A file that a run could not start from is known before. */
START_TEST(a_dry_run_looks_at_the_weights_to_start_from)
{
    assert_succeeds(dptrain(SMALL "--quiet --save w.safetensors"));
    const run *r = dptrain(SMALL "--dry-run --init w.safetensors");
    assert_succeeds(r);
    assert_contains(r->out, "\nweights to start from: 6 of 6 in 'w.safetensors'\n");
    assert_fails(dptrain("train --model linear --data synthetic:40 --quiet --dry-run --init w.safetensors"),
                 2, "missing key(s)");
    r = dptrain(
        "train --model mlp --hidden 64,16 --data synthetic:40 --dry-run --init w.safetensors --init-partial");
    assert_succeeds(r);
    assert_contains(r->out, "\nweights to start from: 3 of 6 in 'w.safetensors'\n");
    assert_fails(dptrain(SMALL "--quiet --dry-run --init none.safetensors"), 1,
                 "cannot read 'none.safetensors'");
}
END_TEST

/* Twelve devices are more than fit side by side. */
START_TEST(many_devices_are_shown_in_parts)
{
    const run *r = dptrain(SMALL "--dry-run --logical-devices 12 --device-ids 0,1,2,3,4,5,6,7,8,9,10,11");
    assert_succeeds(r);
    assert_fits(r->out);
    assert_contains(r->out, "cpu:11\n");
    r = dptrain("devices --device cpu --logical-devices 12");
    assert_succeeds(r);
    assert_fits(r->out);
    assert_contains(r->out, "\n               cpu:6       cpu:7       cpu:8");
}
END_TEST

/* The batch that the refusal names is taken, the next one is not. */
START_TEST(the_largest_batch_that_fits_is_named)
{
    const run *r = dptrain(SMALL "--quiet --max-memory 650k");
    assert_fails(r, 2, "more than --max-memory of 650.0 kB; the largest --batch-size that fits is ");
    int largest = atoi(strstr(r->err, "fits is ") + strlen("fits is "));
    ck_assert(largest > 0 && largest < 16);
    ck_assert(!file_exists("model"));
    assert_succeeds(dptrain(SMALL "--max-memory 650k --batch-size %d --quiet", largest));
    assert_fails(dptrain(SMALL "--max-memory 650k --batch-size %d --quiet --model-dir b", largest + 1), 2,
                 "the largest --batch-size that fits is");
    assert_fails(dptrain(SMALL "--quiet --max-memory 1k"), 2, "no batch size would fit");
    assert_succeeds(dptrain(SMALL "--max-memory 1G --quiet --model-dir c"));
}
END_TEST

Suite *memory_suite(void)
{
    Suite *s = suite_create("memory");
    TCase *t = tcase_create("memory");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, harness_enter, harness_leave);
    tcase_add_loop_test(t, a_dry_run_prints_what_a_run_takes, 0, 3);
    tcase_add_test(t, a_dry_run_looks_at_the_weights_to_start_from);
    tcase_add_test(t, many_devices_are_shown_in_parts);
    tcase_add_test(t, every_operation_of_a_network_is_listed);
    tcase_add_test(t, the_largest_batch_that_fits_is_named);
    suite_add_tcase(s, t);
    return s;
}

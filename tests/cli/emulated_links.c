/* Direct transfers between emulated GPUs: which are opened, how they are tried, and what becomes of broken
 * ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulated.h"

/* Three devices, of which the middle one gathers. The text of the warnings is left to the caller. */
static const run *train_three(const char *options)
{
    return dptrain("train " SMALL "--device-ids 0,1,2 --output-device 1 --save w %s", options);
}

static const struct {
    const char *peer, *fault, *why; /* why: NULL where there is nothing to tell */
} links[] = {
    {"", "", NULL},
    {"none:0-1", "", NULL},
    {"corrupt:0-1", "", "(damaged: what arrived is not what was sent)"},
    {"hang:0-1", "", "(nothing arrived within 5 s)"},
    {"fail:0-1", "", "cudaMemcpyPeerAsync: "},
    {"", "cudaDeviceEnablePeerAccess:3+:711", NULL}, /* too many peers */
    {"", "cudaDeviceEnablePeerAccess:1+:217", NULL},
};

/* Whatever the links are like, the weights are the same, and the user is told of those that are broken. */
START_TEST(broken_links_are_found_and_gone_round)
{
    machine("3");
    const run *r = train_three("--p2p off");
    assert_succeeds(r);
    assert_lacks(r->err, "warning");
    ck_assert_int_eq(rename("w", "expected"), 0);
    setenv("DPTRAIN_EMULATED_PEER", links[_i].peer, 1);
    setenv("DPTRAIN_EMULATED_FAULT", links[_i].fault, 1);
    r = train_three("");
    assert_succeeds(r);
    assert_same_file("w", "expected");
    if (!links[_i].why) {
        assert_lacks(r->err, "warning");
        return;
    }
    assert_contains(r->err, "warning: direct transfers between cuda:0 and cuda:1 are not used ");
    assert_contains(r->err, links[_i].why);
    assert_contains(r->err, "iommu=pt");
    assert_lacks(r->err, "cuda:2 are not used");
}
END_TEST

/* What the trial is for: without it, the damage is trained in. */
START_TEST(untried_links_are_used_only_when_asked_for)
{
    machine("3");
    assert_succeeds(train_three("--p2p off"));
    ck_assert_int_eq(rename("w", "expected"), 0);
    assert_succeeds(train_three("--p2p on"));
    assert_same_file("w", "expected");
    setenv("DPTRAIN_EMULATED_PEER", "corrupt:0-2", 1);
    assert_succeeds(train_three("--p2p off"));
    assert_same_file("w", "expected");
    const run *quiet = train_three("--quiet");
    assert_succeeds(quiet);
    ck_assert_str_eq(quiet->err, "");
    assert_same_file("w", "expected");
    const run *r = train_three("--p2p on");
    if (r->code == 0)
        ck_assert_int_ne(system("cmp -s w expected"), 0);
    else
        ck_assert_int_eq(r->code, 3); /* or to a number that is not finite */
    assert_fails(dptrain("train " SMALL "--device cpu --p2p on"), 2, "--p2p on is for CUDA devices");
    assert_fails(dptrain("train " SMALL "--p2p maybe"), 2, "one of auto, on, off");
}
END_TEST

/* What the trial's own process says. */
START_TEST(a_trial_says_what_it_met)
{
    machine("3");
    const run *r = dptrain("try-links 3 5 0-1,2-1");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "0 1 begin\n0 1 sound\n2 1 begin\n2 1 sound\n");
    setenv("DPTRAIN_EMULATED_PEER", "corrupt:0-1", 1);
    r = dptrain("try-links 3 5 0-1,2-1");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "0 1 begin\n0 1 damaged\n2 1 begin\n2 1 sound\n");
    setenv("DPTRAIN_EMULATED_FAULT", "cudaMemcpyPeerAsync:2:719", 1);
    r = dptrain("try-links 3 5 0-1,2-1");
    ck_assert_int_eq(r->code, 1);
    assert_contains(r->out, "0 1 begin\n0 1 failed: cuda:0: cudaMemcpyPeerAsync: ");
    assert_lacks(r->out, "2 1");
    assert_fails(dptrain("try-links 3 5"), 2, "try-links needs");
    assert_fails(dptrain("try-links 3 5 0,1"), 2, "pairs like");
    assert_fails(dptrain("try-links 65 5 0-1"), 2, "DEVICES");
    assert_fails(dptrain("try-links 3 0 0-1"), 2, "SECONDS");
    assert_fails(dptrain("try-links 3 5 0-3"), 2, "no link");
}
END_TEST

static const struct {
    const char *options;
    int enabled[4]; /* by GPU: how many others it may reach */
    bool direct;
} uses[] = {
    {"--loss-mode global", {3, 1, 1, 1}, true},
    {"--loss-mode gather", {3, 1, 1, 1}, true},
    {"--loss-mode gather --output-device 2", {3, 2, 3, 2}, true},
    {"--loss-mode global --device-ids 3,1", {0, 1, 0, 1}, true},
    {"--p2p off", {0, 0, 0, 0}, false},
};

START_TEST(only_links_in_use_are_enabled)
{
    int enabled[8], copies[8], total = 0;
    machine("4");
    setenv("DPTRAIN_EMULATED_REPORT", "report", 1);
    assert_succeeds(dptrain("train " SMALL "%s", uses[_i].options));
    read_figure("peers_enabled", enabled);
    assert_succeeds(dptrain("train " SMALL "%s", uses[_i].options));
    read_figure("direct_copies", copies);
    for (int k = 0; k < 4; k++) {
        ck_assert_msg(enabled[k] == uses[_i].enabled[k], "GPU %d: %d", k, enabled[k]);
        total += copies[k];
    }
    ck_assert(uses[_i].direct ? total > 0 : total == 0);
}
END_TEST

START_TEST(broken_links_are_listed)
{
    machine("4");
    setenv("DPTRAIN_EMULATED_PEER", "hang:0-1,corrupt:2-3", 1);
    json_t *list = list_devices("");
    const json_t *hanging = find_link(list, "cuda:1", "cuda:0"), *sound = find_link(list, "cuda:0", "cuda:2");
    ck_assert(json_is_false(json_object_get(hanging, "peer_access")));
    ck_assert(json_is_false(json_object_get(hanging, "intact")));
    ck_assert_str_eq(string_of(hanging, "broken"), "nothing arrived within 5 s");
    assert_contains(string_of(find_link(list, "cuda:2", "cuda:3"), "broken"), "damaged");
    ck_assert(json_is_null(json_object_get(sound, "broken")));
    ck_assert(json_is_true(json_object_get(sound, "peer_access")));
    json_decref(list);
}
END_TEST

TCase *emulated_links_case(void)
{
    TCase *c = tcase_create("links");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_loop_test(c, broken_links_are_found_and_gone_round, 0, sizeof links / sizeof *links);
    tcase_add_test(c, a_trial_says_what_it_met);
    tcase_add_test(c, untried_links_are_used_only_when_asked_for);
    tcase_add_loop_test(c, only_links_in_use_are_enabled, 0, sizeof uses / sizeof *uses);
    tcase_add_test(c, broken_links_are_listed);
    return c;
}

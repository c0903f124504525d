"""`AdamAccumulate(accum_iters=4)` is the big batch, or `fit` says why it isn't.

A row is a program: a loss, masks, sample weights, losses that layers add, who computes the loss, and
the data. Its last columns say what each `reduction` does with it:

* `exact`: weights and slots are those of the stock optimizer at the big batch;
* `mean`: each micro-batch counts the same, so they are others, and nothing is said. With "mean",
  windows go on in the next epoch;
* `warns:why`: one warning, and each micro-batch counts by its number of samples;
* `first:why`: the same, but it counts by what its first loss is divided by, because only later
  micro-batches show the problem. Graphs of TensorFlow don't know these lengths, and so warn at once;
* `refuses:why`: an error.

Rows that begin with `*` are quick.
"""

import pytest
from cases import skip_file_on_keras2, thorough
import programs
import hosts
import numpy as np
from programs import Program
from training import assert_equal

skip_file_on_keras2("reduction='auto'")

WHY = {
    "compares": "isn't a mean over samples: it compares samples",
    "masks": "divided by the number of elements that aren't masked or ignored",
    "lengths": "is a mean over values, of which samples may have unequal numbers",
    "sum": "is a sum",
    "beside": "is a sum beside terms that aren't",
    "several": "divided by different numbers",
    "added": "Layers add losses, such as activity penalties",
    "unread": "can't read what",
    "needs": "needs the weight of each micro-batch",
    "no_weights": "`weigh` needs an optimizer constructed without `reduction`",
}

# What isn't as it should be.
KNOWN = {
    "lost": "Keras's gradient is 0 in a micro-batch whose sample weights add up to 0, so it is lost",
}

TABLE = """
  loss          mask       weights        layers    who             data      auto            mean    weighted
  ----------------------------------------------------------------------------------------------------------------
* samples       -          -              -         fit             short     exact           mean    exact
  samples       -          -              -         fit             even      exact           exact   exact
  samples       -          -              -         fit             partial   exact           mean    exact
  elements      -          -              -         fit             short     exact           mean    exact
* elements      -          -              -         fit             lengths   exact           mean    exact
* elements      masking    -              -         fit             short     exact           mean    exact
  elements      masking    -              -         fit             even      exact           mean    exact
  elements      masking    -              -         fit             partial   exact           mean    exact
  elements      masking    -              -         fit             lengths   exact           mean    exact
  elements      masking    -              -         fit             empty     exact           mean    exact
  elements      embedding  -              -         fit             short     exact           mean    exact
  elements      embedding  -              -         fit             empty     exact           mean    exact
  elements      own        -              -         fit             short     exact           mean    exact
  elements      pooled     -              -         fit             short     exact           mean    exact
  ignored       -          -              -         fit             short     exact           mean    exact
  ignored       -          -              -         fit             empty     exact           mean    exact
  ignored       masking    -              -         fit             short     exact           mean    exact
  ignored       masking    -              -         fit             empty     exact           mean    exact
  samples       -          given          -         fit             short     exact           mean    exact
  elements      -          rows           -         fit             lengths   exact           mean    exact
  elements      -          steps          -         fit             short     exact           mean    exact
  elements      masking    steps          -         fit             short     exact           mean    exact
  elements      masking    steps          -         fit             empty     exact           mean    exact
  elements      own        steps          -         fit             short     exact           mean    exact
  ignored       -          steps          -         fit             short     exact           mean    exact
  samples       -          divided        -         fit             even      exact           mean    exact
  samples       -          cancel         -         fit             short     lost            mean    lost
  elements      -          divided_steps  -         fit             short     exact           mean    exact
* elements      -          divided_rows   -         fit             lengths   exact           mean    exact
  elements      masking    divided_rows   -         fit             lengths   exact           mean    exact
  elements      masking    divided_steps  -         fit             empty     exact           mean    exact
  ignored       masking    divided_steps  -         fit             short     exact           mean    exact
  samples       -          -              penalty   fit             short     exact           mean    exact
  elements      masking    -              penalty   fit             short     exact           mean    exact
  ignored       -          -              penalty   fit             empty     exact           mean    exact
  samples       -          -              activity  fit             short     exact           mean    exact
  elements      -          -              activity  fit             short     exact           mean    exact
  elements      -          rows           activity  fit             short     exact           mean    exact
  elements      -          -              activity  fit             lengths   first:added     mean    refuses:added
* elements      masking    -              activity  fit             short     warns:added     mean    refuses:added
  samples       -          divided        activity  fit             even      warns:added     mean    refuses:added
* sum           -          -              -         fit             short     exact           mean    exact
  sum           -          -              -         fit             partial   exact           mean    exact
  sum           -          -              -         fit             lengths   exact           mean    exact
  sum           masking    -              -         fit             empty     exact           mean    exact
  sum           -          steps          -         fit             short     exact           mean    exact
  sum           -          -              penalty   fit             short     warns:beside    mean    refuses:beside
  sum           -          -              activity  fit             even      warns:beside    mean    refuses:beside
  sum_and_mean  -          -              -         fit             even      warns:beside    mean    refuses:beside
  two_sums      -          -              -         fit             short     exact           mean    exact
  scalar        -          -              -         fit             short     exact           mean    refuses:unread
  scalar        -          -              penalty   fit             short     exact           mean    refuses:unread
  scalar        masking    -              -         fit             short     warns:masks     mean    refuses:masks
  own_call      -          -              -         fit             short     exact           mean    refuses:unread
  own_call      masking    -              -         fit             short     warns:masks     mean    refuses:masks
  added         -          -              -         fit             short     exact           mean    refuses:unread
  no_reduction  -          -              -         fit             even      exact           exact   refuses:unread
* cosine        -          -              -         fit             even      warns:compares  mean    refuses:compares
  dice          -          -              -         fit             short     warns:compares  mean    refuses:compares
  tversky       -          -              -         fit             even      warns:compares  mean    refuses:compares
  circle        -          -              -         fit             even      warns:compares  mean    refuses:compares
  two           -          -              -         fit             short     exact           mean    exact
  two           -          -              -         fit             lengths   exact           mean    exact
  two           masking    -              -         fit             short     exact           mean    exact
  two           two        -              -         fit             short     warns:several   mean    refuses:several
  two           -          -              activity  fit             short     exact           mean    exact
  two_kinds     -          -              -         fit             short     exact           mean    exact
  two_kinds     -          -              -         fit             lengths   first:several   mean    refuses:several
  two_kinds     masking    -              -         fit             even      warns:several   mean    refuses:several
* samples       -          -              -         compute_loss    short     exact           mean    exact
  elements      -          -              -         compute_loss    short     exact           mean    exact
  elements      -          -              -         compute_loss    lengths   warns:lengths   mean    refuses:lengths
  elements      masking    -              -         compute_loss    short     warns:masks     mean    refuses:masks
  ignored       -          -              -         compute_loss    short     warns:masks     mean    refuses:masks
  sum           -          -              -         compute_loss    short     warns:sum       mean    refuses:sum
  scalar        -          -              -         compute_loss    short     exact           mean    refuses:unread
  samples       -          -              -         own_words       short     exact           mean    refuses:unread
  samples       -          -              -         own_losses      short     exact           mean    refuses:unread
  ignored       -          -              -         own_losses      short     warns:masks     mean    refuses:masks
  sum           -          -              -         own_losses      short     warns:sum       mean    refuses:sum
* samples       -          -              -         train_step      short     exact           mean    exact
  elements      -          -              -         train_step      lengths   exact           mean    exact
  elements      masking    -              -         train_step      short     exact           mean    exact
  ignored       masking    -              -         train_step      empty     exact           mean    exact
  elements      -          divided_rows   -         train_step      lengths   exact           mean    exact
  sum           -          -              -         train_step      short     exact           mean    exact
  elements      masking    -              activity  train_step      short     warns:added     mean    refuses:added
  samples       -          -              -         loop            even      exact           exact   refuses:needs
* samples       -          -              -         loop            short     mean            mean    refuses:needs
  elements      masking    -              -         loop            even      mean            mean    refuses:needs
* samples       -          -              -         loop_weigh      short     exact   refuses:no_weights  exact
  elements      masking    -              -         loop_weigh      short     exact   refuses:no_weights  exact
  elements      -          -              -         loop_weigh      lengths   exact   refuses:no_weights  exact
  ignored       -          -              -         loop_weigh      empty     exact   refuses:no_weights  exact
  samples       -          -              -         train_on_batch  even      exact           exact   refuses:needs
  samples       -          -              -         train_on_batch  short     mean            mean    refuses:needs
  elements      masking    -              -         train_on_batch  even      mean            mean    refuses:needs
"""


def read_rows():
    for line in TABLE.strip().splitlines()[2:]:
        *parts, auto, mean, weighted = line.lstrip("* ").split()
        program = Program(*parts)
        if not hosts.IS_KERAS3 and (
            program.loss in programs.ON_KERAS3_ONLY
            or program.weights.startswith(programs.ON_KERAS3_ONLY)
        ):
            continue
        if program.loss == "no_reduction" and not hosts.IS_TENSORFLOW:
            continue  # Keras can't train with it: a gradient is that of one number
        if program.weights == "divided_rows" and program.mask != "-" and hosts.IS_TORCH:
            continue  # Keras multiplies the weights in place there
        for reduction, verdict in zip(("auto", "mean", "weighted"), (auto, mean, weighted)):
            name = "-".join(part for part in (*program, reduction) if part != "-")
            marks = [] if line.startswith("*") else [thorough]
            if verdict in KNOWN:
                marks.append(pytest.mark.xfail(strict=True, reason=KNOWN[verdict]))
                verdict = "exact"
            yield pytest.param(program, reduction, verdict, id=name, marks=marks)


@pytest.mark.parametrize("program, reduction, verdict", list(read_rows()))
def test_the_table(program, reduction, verdict):
    word, _, why = verdict.partition(":")
    if word == "first" and hosts.IS_TENSORFLOW:
        word = "warns"
    if word == "refuses":
        with pytest.raises(ValueError, match=WHY[why]):
            programs.run(program, reduction)
        return
    result = programs.run(program, reduction)
    found = [bool(why) and WHY[why] in text for text in result.said]
    assert found == [True] * bool(why), result.said
    expected = {
        "exact": programs.at_the_big_batch,
        "mean": programs.by_micro_batches,
        "warns": programs.by_samples,
        "first": programs.by_divisors,
    }[word](program)
    tolerance = hosts.TOLERANCE if word == "exact" else {"rtol": 1e-4, "atol": 1e-5}
    assert_equal(result.weights, expected.weights, **tolerance)
    assert_equal(result.slots, expected.slots, **tolerance)
    if word == "mean":
        big = {**programs.at_the_big_batch(program).weights, **programs.at_the_big_batch(program).slots}
        found = {**result.weights, **result.slots}
        assert max(np.abs(big[name] - found[name]).max() for name in big) > 1e-4

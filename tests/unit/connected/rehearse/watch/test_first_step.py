import time

import pytest

from deployer.connected.rehearse.watch.first_step import FirstStep


def read(*parts):
    made = FirstStep()
    for seconds, text in parts:
        made.feed(text, seconds)
    made.end(parts[-1][0])
    return made.seconds


@pytest.mark.parametrize(
    "text",
    [
        "  1/468 [..............................] - ETA: 12:10 - loss: 2.3\b\b\b",
        "\r468/468 [==============================] - 4s 7ms/step - loss: 0.2",
        "\x1b[1m118/118\x1b[0m \x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m 3s 21ms/step - accuracy: 0.9",
        " 12%|█▏        | 56/468 [00:05<00:40, 10.0it/s]",
        " 12%|█▏        | 56/468 [00:05<00:40,  2.50s/it]",
        "Epoch: [0][   10/5005]\tTime  0.345 ( 0.412)\tData  0.001 ( 0.020)",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.1",
        "Iter #0: 123.4 img/sec per CPU",
    ],
)
def test_lines_of_progress(text):
    assert read((0.5, "Running warmup...\n"), (3.0, text)) == 3.0


@pytest.mark.parametrize(
    "text", ["", "Epoch 1/5\n", "took 3 steps back\n", "  0%|          | 0/468 [00:00<?, ?it/s]", "1/2 of the data\n"]
)
def test_other_lines_are_no_steps(text):
    assert read((1.0, text)) is None


def test_counted_steps_are_progress():
    assert read((2.0, "step 10 loss 1\n"), (12.0, "step 30 loss 1\n")) == 2.0


def test_a_bar_that_goes_back_counts_before_its_line_ends():
    bar = " 1/12 [=>....] - ETA: 5s - loss: 2.3"
    assert read((2.0, bar + "\b" * 40), (9.0, "12/12 [====] - 7s 600ms/step\n")) == 2.0


def test_a_line_may_come_in_parts():
    assert read((1.0, "468/468 [====] - 4s 7m"), (1.5, "s/step - loss: 0.2\n")) == 1.5
    assert read((1.0, "x" * 100_000), (2.0, "\n")) is None


@pytest.mark.parametrize("text", ["9" * 2000, "step " + "9" * 400 + "\n" + "step 1" + "0" * 400, "1e9% " * 400])
def test_a_line_of_digits_is_no_progress_and_takes_no_time(text):
    begun = time.monotonic()
    assert read(*[(float(number), text + "\n") for number in range(100)]) is None
    assert time.monotonic() - begun < 1

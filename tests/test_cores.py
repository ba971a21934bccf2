"""Turns of threads: kept for a step, left for long computations, and never waited for long."""

import threading

from dekrr.cores import letting_others_in, turn


def test_a_turn_is_left_for_a_long_computation_and_taken_again():
    lock = threading.Lock()
    with turn(lock):
        assert lock.locked()
        with letting_others_in():
            assert not lock.locked()
        assert lock.locked()
    assert not lock.locked()


def test_whoever_waits_too_long_goes_on_without_the_turn():
    lock = threading.Lock()
    lock.acquire()
    with turn(lock), letting_others_in():
        assert lock.locked()  # it is the other's still
    assert lock.locked()
    lock.release()
    with turn(lock):
        assert lock.locked()


def test_the_turn_is_left_when_a_step_fails():
    lock = threading.Lock()
    try:
        with turn(lock), letting_others_in():
            raise ValueError
    except ValueError:
        pass
    assert not lock.locked()


def test_without_a_turn_nothing_is_left():
    with letting_others_in():
        pass

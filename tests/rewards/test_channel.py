import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rewards.channel import Channel


@given(st.lists(st.binary(max_size=3000), max_size=5))
def test_messages_arrive_whole_and_in_order(messages):
    left, right = socket.socketpair()
    with left, right:
        for message in messages:
            Channel(left).send(message)
        receiver = Channel(right)
        assert [receiver.receive(limit_seconds=5) for _ in messages] == messages


def test_message_in_pieces_is_put_together():
    left, right = socket.socketpair()
    with left, right:
        for piece in ((3).to_bytes(8, "big"), b"ab", b"c" + (1).to_bytes(8, "big"), b"d"):
            left.sendall(piece)
        receiver = Channel(right)
        assert [receiver.receive_pickled(limit_seconds=5) for _ in range(2)] == [b"abc", b"d"]


def test_waits_have_limits():
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(TimeoutError):
            Channel(right).receive(limit_seconds=0.01)
        with pytest.raises(TimeoutError):
            Channel(left).send(bytes(10_000_000), limit_seconds=0.01)


def test_closed_end_is_noticed():
    left, right = socket.socketpair()
    with right:
        Channel(left).close()
        with pytest.raises(EOFError):
            Channel(right).receive()

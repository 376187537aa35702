"""The courier of the first host in hosts_simulation.py: it listens nowhere, and has all contributions at once."""

from __future__ import annotations

import sys

from platoon_base.courier.messages import Gather, Gathered, Listening, decode_order, encode


def main() -> None:
    """Answer until the launcher closes the pipe."""
    say(Listening("127.0.0.1", 1, "00"))
    for line in sys.stdin.buffer:
        order = decode_order(line)
        if isinstance(order, Gather):
            say(Gathered(order.number, dict.fromkeys(order.hosts, order.number - 1)))


def say(news: Listening | Gathered) -> None:
    """Write a message for the launcher."""
    sys.stdout.buffer.write(encode(news))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

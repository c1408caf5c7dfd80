"""Python runs this first in engines that give blocks to each other in memory: they wait long.

One that stood still for a second would get none and compute the prompt itself, with the same
tokens, where a test counts what came.
"""

from quire.runner.transfer import shared_link

shared_link.ANSWER_SECONDS = 60.0

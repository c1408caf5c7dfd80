"""Python runs this first in engines that give blocks to each other in memory: they wait long.

One that stood still for a second would get none and compute the prompt itself, with the same
tokens, where a test counts what came; and so would one that stood still while it loaded some, and
measured by it what loading costs.
"""

from quire.engine.scheduling.prefill_policy import PrefillPolicy
from quire.runner.blocks.transfer import shared_link

shared_link.ANSWER_SECONDS = 60.0
PrefillPolicy.prompt_token_seconds = 1.0

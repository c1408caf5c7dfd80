"""Checksums of cached KV blocks, verified when a block is reused; the engine ends the requests.

A block's checksum is taken after the step that fills it. Nothing may write to the block from then
on until it is allocated again: a difference means that memory was overwritten or has failed.
"""

from __future__ import annotations

from quire.core.errors import FailureKind, RequestFailure
from quire.core.metrics import Samples
from quire.core.step import SchedulerOutput
from quire.kernels.backend import KVCache
from quire.settings.cache_options import KVCanaryMode
from quire.system.log import get_logger

log = get_logger(__name__)


def create_canary(kv_cache: KVCache, mode: KVCanaryMode) -> KVCanary | NoCanary:
    """Return the canary of a cache in a mode."""
    return NoCanary() if mode == "off" else KVCanary(kv_cache, mode)


class KVCanary:
    """Checks of the blocks of one cache.

    Args:
        kv_cache: The blocks.
        mode: ``log`` to log an error and continue; ``raise`` to end the request with an error, so
            that its blocks leave the prefix cache.

    Attributes:
        allows_drops: Whether rows of a step may be dropped; a canary seals all blocks that a plan
            fills.
        num_checks, num_failures: Number of blocks verified, and of those found changed.
    """

    allows_drops = False

    def __init__(self, kv_cache: KVCache, mode: KVCanaryMode) -> None:
        assert mode != "off"
        self._kv_cache = kv_cache
        self._mode = mode
        self._checksums: dict[int, int] = {}
        self.num_checks = 0
        self.num_failures = 0

    def verify(self, plan: SchedulerOutput) -> dict[str, RequestFailure]:
        """Check the blocks that requests of a step reuse, before anything is computed.

        Returns:
            Failures that must end requests, by request id, forked children included; empty for
            ``log``.
        """
        for block_id in plan.sealed_blocks:  # filled in this step: their old checksums are void
            self._checksums.pop(block_id, None)
        failures: dict[str, RequestFailure] = {}
        for request_id, reused in plan.reused_blocks:
            known = [block_id for block_id in reused if block_id in self._checksums]
            found = self._kv_cache.checksums(known)
            changed = [
                block_id
                for block_id, checksum in zip(known, found, strict=True)
                if checksum != self._checksums[block_id]
            ]
            self.num_checks += len(known)
            self.num_failures += len(changed)
            if changed:
                message = (
                    f"[kv_canary] a cached block must not change; got another checksum of "
                    f"{len(changed)} of {len(known)} reused blocks (block {changed[0]})."
                )
                log.error("%s Request %s.", message, request_id)
                failures[request_id] = RequestFailure(FailureKind.KV_CANARY, message)
        if self._mode == "log":
            return {}
        children = {
            fork.child_id: failures[fork.parent_id]
            for fork in plan.forks
            if fork.parent_id in failures
        }
        return failures | children

    def seal(self, plan: SchedulerOutput) -> None:
        """Take the checksums of the blocks that a step has filled."""
        if plan.sealed_blocks:
            found = self._kv_cache.checksums(plan.sealed_blocks)
            self._checksums.update(zip(plan.sealed_blocks, found, strict=True))

    def samples(self) -> Samples:
        """Return the counters by metric stem."""
        return {"kv_canary_checks": self.num_checks, "kv_canary_failures": self.num_failures}


class NoCanary:
    """The canary of a cache whose blocks are not checked."""

    allows_drops = True

    def verify(self, plan: SchedulerOutput) -> dict[str, RequestFailure]:
        """Return no failures: nothing is checked."""
        return {}

    def seal(self, plan: SchedulerOutput) -> None:
        """Do nothing: no checksums are taken."""

    def samples(self) -> Samples:
        """Return the counters by metric stem."""
        return {"kv_canary_checks": 0, "kv_canary_failures": 0}

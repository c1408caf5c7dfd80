"""Block tables: which blocks hold a request's KV; it neither schedules nor touches memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quire.core.model.kv_cache_spec import KVCacheSpec
from quire.engine.cache.block_hash import ROOT_HASH, hash_block
from quire.engine.cache.block_pool import NULL_BLOCK, BlockPool
from quire.engine.cache.kv_layout import KVLayout
from quire.engine.cache.kv_report import SlotUse
from quire.engine.request import PrefixMatch, Request

PAGED = KVLayout()


@dataclass(slots=True)
class BlockTable:
    """One request's blocks.

    Attributes:
        block_ids: Ids of the blocks in token order; several tables may hold the same block. The
            null block stands for those that were given back.
        num_unseen: Leading blocks that were given back, since no token to come sees them.
        num_slots_used: Leading slots that hold tokens, or will after the step being planned.
        num_hashed: Leading blocks that were offered to the prefix cache.
    """

    block_ids: list[int] = field(default_factory=list)
    num_slots_used: int = 0
    num_hashed: int = 0
    num_unseen: int = 0

    @property
    def held(self) -> list[int]:
        """The blocks that it holds, in token order."""
        return self.block_ids[self.num_unseen :]


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A shared block that its holder is about to write: entry ``index`` of the table changes."""

    index: int
    source: int
    destination: int


@dataclass(slots=True)  # not frozen: made for each row of a step, in a third of the time
class Allocation:
    """The changes that a granted allocation made.

    Attributes:
        new_block_ids: Ids that were appended to the request's table, cache hits first.
        unseen: Entries of the table before them that were given back: the null block now.
        copy: The block to copy before the step writes, or None.
    """

    new_block_ids: list[int]
    copy: BlockCopy | None = None
    unseen: range = range(0)


class KVCacheManager:
    """Gives blocks to requests and finds blocks that already hold their tokens.

    Full blocks are offered to the prefix cache when the step that fills them is *planned*, so that
    a request planned later in the same step already shares them. This stands on two rules: within
    a step a layer writes the KV of all rows before any row reads, and a planned request is not
    preempted until its step has run.

    Where no layer sees further back than a window, a request's blocks are given back as it
    leaves them. They can be found until they are given out again. A request that continues from
    there needs to find only what the window covers.

    Args:
        pool: The blocks.
        spec: The size of the blocks, and how far back tokens see.
        enable_prefix_caching: Whether blocks are found by content.
        layout: The policy that says how many blocks a request gets, and when.
    """

    def __init__(
        self,
        pool: BlockPool,
        spec: KVCacheSpec,
        enable_prefix_caching: bool,
        layout: KVLayout = PAGED,
    ) -> None:
        self.pool = pool
        self.spec = spec
        self.block_size = spec.block_size
        self.enable_prefix_caching = enable_prefix_caching and layout.shares_blocks
        self.layout = layout
        self._tables: dict[str, BlockTable] = {}

    @property
    def usage(self) -> float:
        """Part of the blocks that requests hold, 0 to 1."""
        return self.pool.num_used / (self.pool.num_blocks - 1)

    @property
    def num_references(self) -> int:
        """Entries of the block tables; a block that n tables share counts n times."""
        return sum(len(t.block_ids) - t.num_unseen for t in self._tables.values())

    @property
    def fragmentation(self) -> float:
        """Part of the tables' slots that holds no token, 0 to 1; shared blocks count each time."""
        tables = self._tables.values()
        given_back = sum(table.num_unseen for table in tables) * self.block_size
        reserved = sum(len(table.block_ids) for table in tables) * self.block_size - given_back
        used = sum(table.num_slots_used for table in tables) - given_back
        return SlotUse(reserved, used).fragmentation

    def block_ids(self, request: Request) -> list[int]:
        """Return the request's block table (a copy); empty when it holds nothing."""
        table = self._tables.get(request.request_id)
        return list(table.block_ids) if table else []

    def num_blocks(self, request: Request) -> int:
        """Return how many blocks the request's table holds."""
        table = self._tables.get(request.request_id)
        return len(table.block_ids) - table.num_unseen if table else 0

    def get_computed_blocks(self, request: Request, num_left: int = 1) -> list[int]:
        """Return cached blocks that continue the request's computed tokens; nothing changes.

        The null block stands for those that no token after the last of them sees.
        Only full blocks hit, and never the request's last ``num_left`` tokens: the logits of the
        last one are wanted. Asked again while a prompt is computed in chunks, it finds what other
        requests computed meanwhile. The request keeps the match: gates, admission and the plan of
        one step ask for the same one, which is looked up again only when the cache has changed.
        """
        if not self.enable_prefix_caching or request.needs_whole_prompt:
            return []
        start, offset = divmod(request.num_computed_tokens, self.block_size)
        table = self._tables.get(request.request_id)
        if offset or (table and len(table.block_ids) > start):
            return []
        num_held = len(table.block_ids) if table else 0
        most = request.num_tokens - num_left
        now = (self.pool.num_changes, request.num_computed_tokens, most, num_held)
        match = request.prefix_match
        if match is None or match.found_at != now:
            self._extend_hashes(request)
            found = self._find(request.block_hashes, start, most // self.block_size)
            match = request.prefix_match = PrefixMatch(found, now)
        return match.block_ids

    def _find(self, block_hashes: Sequence[bytes], start: int, stop: int) -> list[int]:
        if self.spec.window is not None:
            return self._find_windows(block_hashes, start, stop)
        found = []
        for block_hash in block_hashes[start:stop]:
            block_id = self.pool.cached.get(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def _find_windows(self, block_hashes: Sequence[bytes], start: int, stop: int) -> list[int]:
        """Return cached blocks from ``start`` on up to the last one from which to go on."""
        # From the end: what is found there saves most, and a look ends with its window.
        cached, end = self.pool.cached, stop
        for index in range(stop - 1, start - 1, -1):
            if block_hashes[index] not in cached:
                end = index
                continue
            first_seen = max(self.spec.first_seen_block(end * self.block_size), start)
            if index <= first_seen:
                found = [cached[key] for key in block_hashes[first_seen:end]]
                return [NULL_BLOCK] * (first_seen - start) + found
        return []

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        computed_block_ids: Sequence[int] = (),
        num_reserve_tokens: int = 0,
        num_lookahead_tokens: int = 0,
    ) -> Allocation | None:
        """Give the request slots for its next tokens.

        Args:
            request: The request; its ``num_computed_tokens`` does not count
                ``computed_block_ids`` yet.
            num_new_tokens: Tokens to be computed after the computed ones and the hits.
            computed_block_ids: Result of :meth:`get_computed_blocks` just before.
            num_reserve_tokens: Number of the request's tokens that must fit in all, or it is
                refused.
            num_lookahead_tokens: Further slots for tokens that are proposed and not known; the
                slots of tokens that do not hold are taken back by :meth:`settle`.

        Returns:
            The changes, or None when the tokens do not fit; on None nothing changed.
        """
        assert num_new_tokens > 0, f"num_new_tokens must be > 0: {num_new_tokens}"
        pool, block_size = self.pool, self.block_size
        table = self._tables.get(request.request_id) or BlockTable()
        num_computed = request.num_computed_tokens + len(computed_block_ids) * block_size
        num_total = num_computed + num_new_tokens + num_lookahead_tokens
        num_held = len(table.block_ids) + len(computed_block_ids)
        num_missing = max(-(-num_total // block_size), self.layout.num_reserved) - num_held
        first_seen = self.spec.first_seen_block(num_computed)
        index, offset = divmod(num_computed, block_size)
        copies = offset > 0 and pool.ref_cnt[table.block_ids[index]] > 1
        if num_missing > 0 or copies or computed_block_ids:
            unseen = table.block_ids[table.num_unseen : first_seen]
            hits = [block_id for block_id in computed_block_ids if block_id != NULL_BLOCK]
            num_to_come = self.spec.num_blocks(num_reserve_tokens) - len(table.held) - len(hits)
            num_needed = max(num_missing, num_to_come, 0) + copies
            num_idle_hits = sum(pool.ref_cnt[block_id] == 0 for block_id in hits)
            num_given_back = sum(pool.ref_cnt[block_id] == 1 for block_id in unseen)
            if num_needed > pool.num_free - num_idle_hits + num_given_back:
                return None
        run = pool.find_run(num_missing) if self.layout.in_one_run and num_missing > 0 else ()
        if run is None:
            return None
        given_back = self._give_back_unseen(table, first_seen)
        copy = self._copy_on_write(table, index) if copies else None
        new_block_ids: list[int] = []
        if num_missing > 0 or computed_block_ids:
            if computed_block_ids:
                pool.hold(hits)
                for observer in pool.observers:
                    observer.hit(request.request_id, hits)
            own = pool.take(run) if run else pool.allocate(max(num_missing, 0))
            new_block_ids = [*computed_block_ids, *own]
            table.block_ids += new_block_ids
            self._tables[request.request_id] = table
            table.num_unseen = max(table.num_unseen, first_seen)  # among the hits, too
        table.num_slots_used = num_total
        if self.enable_prefix_caching and num_total // block_size > table.num_hashed:
            # Proposed tokens may not be the request's: their blocks have no content to be found by.
            num_known = min(num_computed + num_new_tokens, len(request.token_ids))
            self._remember_full_blocks(request, table, num_known // block_size)
        return Allocation(new_block_ids, copy, given_back)

    def lookahead_room(self, request: Request, num_new_tokens: int) -> int:
        """Return the slots for proposed tokens that need no further block."""
        num_slots = self.block_size * len(self._tables[request.request_id].block_ids)
        return num_slots - request.num_computed_tokens - num_new_tokens

    def take_lookahead_room(self, request: Request, num_tokens: int) -> None:
        """Take slots for proposed tokens, at most those of :meth:`lookahead_room`."""
        self._tables[request.request_id].num_slots_used += num_tokens

    def settle(self, request: Request) -> None:
        """Count the slots of proposed tokens that held, and of no others, as used.

        The blocks that they fill can be found from now on; slots of refused ones are overwritten.
        """
        table = self._tables[request.request_id]
        table.num_slots_used = request.num_computed_tokens
        num_full = request.num_computed_tokens // self.block_size
        if self.enable_prefix_caching and num_full > table.num_hashed:
            self._remember_full_blocks(request, table, num_full)

    def fork(self, parent: Request, child: Request) -> None:
        """Give ``child`` the parent's blocks by reference; a shared one is copied when written."""
        table = self._tables[parent.request_id]
        assert child.request_id not in self._tables, f"{child.request_id} already has a block table"
        needed = -(-parent.num_computed_tokens // self.block_size)
        assert len(table.block_ids) == needed, f"{len(table.block_ids)} blocks, {needed} needed"
        self.pool.hold(table.held)
        self._tables[child.request_id] = replace(table, block_ids=list(table.block_ids))
        child.block_hashes = list(parent.block_hashes)

    def free(self, request: Request, *, forget: bool = False) -> None:
        """Take back all blocks of a request; no effect when it holds none.

        The end of a chain is reused first, so that what is left of it can still be hit.

        Args:
            request: The request, which keeps its block hashes.
            forget: Whether the blocks' content is dropped from the prefix cache, too, because it
                may be wrong.
        """
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        if forget:
            for block_id in table.held:
                self.pool.forget(block_id)
        self.pool.release(reversed(table.held))

    def take_back(self, request: Request) -> None:
        """Undo what was planned and not computed: its blocks stay, and no request finds them."""
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        for index in range(num_full, table.num_hashed):
            block_id = table.block_ids[index]
            if self.pool.block_hash[block_id] == request.block_hashes[index]:
                self.pool.forget(block_id)
        table.num_hashed = min(table.num_hashed, num_full)
        table.num_slots_used = request.num_computed_tokens

    def has_room(self, request: Request, hits: Sequence[int]) -> bool:
        """Return whether all of a waiting request's tokens fit, these hits among its blocks."""
        num_needed = self.spec.num_blocks(request.num_tokens) - self.num_blocks(request)
        num_shared = sum(self.pool.ref_cnt[block_id] > 0 for block_id in hits)
        return num_needed - num_shared <= self.pool.num_free

    def begin_loaded(
        self, request: Request, hits: Sequence[int], count: int
    ) -> list[tuple[int, bytes]]:
        """Give a waiting request its next blocks: hits, and blocks that the next step loads.

        Their content can be found from now on, and its tokens count as computed.

        Args:
            request: The waiting request, for which :meth:`has_room`.
            hits: Result of :meth:`get_computed_blocks` just before.
            count: Blocks to be loaded after the hits, which are not cached; the request's tokens
                fill them.

        Returns:
            Blocks and the hashes of what they must be filled with.
        """
        assert self.spec.window is None, "blocks before a window are not loaded"
        pool, table = self.pool, self._tables.setdefault(request.request_id, BlockTable())
        pool.hold(hits)
        if hits:
            for observer in pool.observers:
                observer.hit(request.request_id, hits)
        block_ids = pool.allocate(count)
        table.block_ids += [*hits, *block_ids]
        num_held = len(table.block_ids)
        loads = list(zip(block_ids, request.block_hashes[num_held - count : num_held], strict=True))
        for block_id, block_hash in loads:
            pool.remember(block_id, block_hash)
        request.num_computed_tokens = table.num_slots_used = num_held * self.block_size
        return loads

    def slot_use(self) -> SlotUse:
        """Return how many slots of the held blocks hold tokens; a shared block counts once."""
        filled: dict[int, int] = {}
        for table in self._tables.values():
            for position, block_id in enumerate(table.held, table.num_unseen):
                in_block = min(table.num_slots_used - position * self.block_size, self.block_size)
                filled[block_id] = max(filled.get(block_id, 0), in_block)
        return SlotUse(len(filled) * self.block_size, sum(filled.values()))

    def describe(self) -> str:
        """Return the pool and every block table as text, for people."""
        pool, use = self.pool, self.slot_use()
        lines = [
            f"{pool.num_blocks} blocks of {self.block_size} slots: {pool.num_used} used, "
            f"{pool.num_free} free, 1 null; {use.used} of {use.reserved} slots filled "
            f"({use.utilization:.1%}), {use.wasted} wasted"
        ]
        for request_id, table in self._tables.items():
            entries = []
            for position, block_id in enumerate(table.held, table.num_unseen):
                first = position * self.block_size
                last = min(first + self.block_size, table.num_slots_used) - 1
                shared = pool.ref_cnt[block_id]
                holders = f" x{shared}" if shared > 1 else ""
                slots = f"{first}-{last}" if first <= last else "reserved"
                entries.append(f"[{block_id}: {slots}{holders}]")
            lines.append(f"{request_id} ({table.num_slots_used} tokens): {' '.join(entries)}")
        return "\n".join(lines)

    def check_integrity(self) -> None:
        """Assert that pool and tables agree: O(blocks).

        Each block's ``ref_cnt`` is the number of tables that hold it; free, used and null blocks
        make the pool; hash and block name each other; no table holds the null block or a block
        twice.
        """
        pool = self.pool
        held = Counter(b for table in self._tables.values() for b in table.held)
        for block_id, count in enumerate(pool.ref_cnt):
            assert count == held[block_id], f"block {block_id}: {count=}, {held[block_id]} tables"
        free = pool.free_block_ids()
        assert len(free) == len(set(free)) == pool.num_free, (len(free), pool.num_free)
        assert not held.keys() & set(free), f"blocks both free and held: {held.keys() & set(free)}"
        assert len(free) + len(held) + 1 == pool.num_blocks, (len(free), len(held), pool.num_blocks)
        assert NULL_BLOCK not in held, "a table holds the null block"
        for block_hash, block_id in pool.cached.items():
            assert pool.block_hash[block_id] == block_hash, f"block {block_id} lost its hash"
        num_hashed = sum(block_hash is not None for block_hash in pool.block_hash)
        assert num_hashed == len(pool.cached), (num_hashed, len(pool.cached))
        for request_id, table in self._tables.items():
            needed = -(-table.num_slots_used // self.block_size)
            assert needed <= len(table.block_ids), (request_id, needed, len(table.block_ids))
            distinct = len(set(table.held))
            assert distinct == len(table.held), (request_id, table.block_ids)
            unseen = table.block_ids[: table.num_unseen]
            assert unseen == [NULL_BLOCK] * table.num_unseen, (request_id, table.block_ids)

    def _give_back_unseen(self, table: BlockTable, first_seen: int) -> range:
        """Give back the blocks before ``first_seen``; return their entries."""
        entries = range(table.num_unseen, min(first_seen, len(table.block_ids)))
        if entries:
            # Those that a later request needs first, to go on from a later token, are kept longest.
            self.pool.release(table.block_ids[entries.start : entries.stop])
            table.block_ids[entries.start : entries.stop] = [NULL_BLOCK] * len(entries)
            table.num_unseen = entries.stop
        return entries

    def _copy_on_write(self, table: BlockTable, index: int) -> BlockCopy:
        source = table.block_ids[index]
        (destination,) = self.pool.allocate(1)
        self.pool.release([source])
        table.block_ids[index] = destination
        return BlockCopy(index, source, destination)

    def _extend_hashes(self, request: Request) -> None:
        hashes, block_size = request.block_hashes, self.block_size
        for index in range(len(hashes), request.num_tokens // block_size):
            start, stop = index * block_size, (index + 1) * block_size
            parent = hashes[-1] if index else ROOT_HASH
            keys = request.block_keys(start, stop)
            hashes.append(hash_block(parent, request.token_ids[start:stop], keys))

    def _remember_full_blocks(self, request: Request, table: BlockTable, num_full: int) -> None:
        self._extend_hashes(request)
        for index in range(max(table.num_hashed, table.num_unseen), num_full):
            self.pool.remember(table.block_ids[index], request.block_hashes[index])
        table.num_hashed = max(num_full, table.num_hashed)

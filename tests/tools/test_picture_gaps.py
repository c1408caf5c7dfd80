"""What the benchmark of pictures measures: gaps of a stream, by what else is done."""

from benchmarks.pictures import KINDS, NUM_REQUESTS, gaps_of_a_stream
from quire import LLM
from tools.random_checkpoint import PRESETS, random_checkpoint


def test_gaps_are_told_apart(tmp_path):
    random_checkpoint(tmp_path, PRESETS["tiny-llava"])
    llm = LLM(str(tmp_path), max_model_len=2048, kv_cache_memory_bytes=2**24, threads=1)
    try:
        gaps = gaps_of_a_stream(llm, 5)
        pictures = llm.engine.engine.stats()["mm_cache_queries"]
    finally:
        llm.shutdown()
    assert set(gaps) == set(KINDS) and pictures == NUM_REQUESTS
    assert len(gaps["alone"]) == 10 and gaps["picture prompts"] and gaps["text prompts"]
    assert len(gaps["encoding"]) == len(gaps["of it encoded"])

"""Whether a sequence could ever run, however empty the cache is."""

from __future__ import annotations

from fusewire.engine.generation_sequence import GenerationSequence
from fusewire.engine.kv_cache import KvCache
from fusewire.errors import InvalidInput, counted


def check_capacity(
    sequence: GenerationSequence, cache: KvCache, max_batch_tokens: int, max_sequences: int
) -> None:
    """Raises InvalidInput where a sequence could never run, with the number that it would need."""
    if not sequence.token_ids:
        raise InvalidInput("prompt", "no tokens", "at least one", "send a longer prompt")
    source = sequence.source
    if source is not None and not 1 <= len(source) <= max_batch_tokens:
        raise InvalidInput(
            "source",
            counted(len(source), "tokens"),
            f"1 to {max_batch_tokens} (max_batch_tokens), as a source is encoded whole",
            "shorten it, or raise max_batch_tokens",
        )
    longest = max(sequence.most_tokens, len(sequence.token_ids))
    if cache.pages_for(longest, source) > cache.pages:
        room = cache.pages * cache.page_size
        beside = "" if source is None else f" beside the {len(source)} of the source"
        raise InvalidInput(
            "max_tokens",
            f"{longest} tokens with the prompt{beside}",
            f"at most {room}, the capacity of the KV cache",
            "shorten the prompt or lower it",
        )
    if not 1 <= sequence.slots <= max_sequences:
        raise InvalidInput(
            "num_beams" if sequence.beams else "n",
            sequence.slots,
            f"1 to {max_sequences}, the sequences that run at once",
            "ask for fewer",
        )
    if sequence.beams:
        _check_pages_of_beams(sequence, cache)


def _check_pages_of_beams(sequence: GenerationSequence, cache: KvCache) -> None:
    prompt = len(sequence.token_ids)
    wanted = cache.pages_for(prompt, sequence.source)
    wanted += cache.beams.most_pages(prompt, sequence.most_tokens, sequence.beams)
    if wanted > cache.pages:
        raise InvalidInput(
            "num_beams",
            f"{sequence.beams} beams of up to {sequence.most_tokens} tokens, which can need "
            f"{counted(wanted, 'pages')}",
            f"at most {counted(cache.pages, 'pages')}, the capacity of the KV cache",
            "lower it or max_tokens, or raise kv_cache_mib",
        )

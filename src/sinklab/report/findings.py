"""Sentences about what was found. Each function looks at one thing and says nothing where it was not measured."""

from collections.abc import Callable

from sinklab.report import paper
from sinklab.report.plain import quoted
from sinklab.report.profile import layer_ranges
from sinklab.report.words import (
    CLEAR,
    FAINT,
    LONG_NORM,
    STRONG,
    Case,
    Facts,
    Saying,
    base,
    counted,
    first_percent,
    has_sink,
    headline,
    listed,
    percent,
    span,
    spread,
    state,
    times,
    with_interval,
)  # fmt: skip

NO_OP, BROADCAST = 0.5, 0.8  # length of what the sink writes, in terms of what others do


def _sink(case: Case) -> Saying:
    sink = headline(case.facts)
    if sink is None:
        return
    number = f"On {case.kind} input {with_interval(sink)} of the heads give it more than {sink['epsilon']:g} of their attention"
    number += f", over {counted(case.facts)}."
    if sink["percent"] >= STRONG:
        yield (
            "sink-strong",
            f"The first token is a strong attention sink. {number} That is normal for a trained softmax model, not a fault.",
        )
    elif sink["percent"] >= CLEAR:
        yield "sink-clear", f"The first token is a clear attention sink in part of the heads. {number} That is normal, not a fault."
    elif sink["percent"] >= FAINT:
        yield "sink-faint", f"The first token is a faint attention sink. {number}"
    else:
        elsewhere = " Its learned sink takes that part." if any(s["percent"] >= FAINT for s in _on_virtual(case)) else ""
        yield "no-sink", f"The first token is no attention sink. {number}{elsewhere} That is a valid result, not a failed measurement."


def _asked(case: Case) -> Saying:
    sink = headline(case.facts)
    known = [s for s in case.facts["sinks"] if s["percent"] is not None and s["position"] > 0]
    if sink is not None:  # the same number elsewhere; other definitions stand in the table
        known = [s for s in known if s["definition"] == "gu2024" and s["epsilon"] == sink["epsilon"] and s["position"] != 1]
    if known:
        parts = [f"{s['definition']} at position {s['position']}, {with_interval(s)}" for s in known[:4]]
        yield "sink-as-asked", f"As asked, on {case.kind} input: {'; '.join(parts)}."


def _paper(case: Case) -> Saying:
    sink, peers = headline(case.facts), paper.peers(case.kind, case.facts["length"])
    if sink is None or sink["epsilon"] != paper.EPSILON or not peers:
        return
    low, high = min(peers, key=lambda name: peers[name]), max(peers, key=lambda name: peers[name])
    where = "below" if sink["percent"] < peers[low] else "above" if sink["percent"] > peers[high] else "within"
    text = f"{percent(sink['percent'])} is {'in' if where == 'within' else where} the range of the paper's models at the same setting: "
    text += f"{peers[low]:.1f} % ({low}) to {peers[high]:.1f} % ({high}), all of 1.5 billion parameters or more ({paper.CITATION})."
    yield f"paper-{where}", text


def _virtual(case: Case) -> Saying:
    if case.facts["virtual"] is None:
        return
    sinks = _on_virtual(case)
    more = f"; {percent(sinks[0]['percent'])} of them give it more than {sinks[0]['epsilon']:g}" if sinks else ""
    text = f"The model has a learned sink that no token holds: heads put {percent(case.facts['virtual'])} of their attention on it{more}."
    yield "virtual-sink", text


def _on_virtual(case: Case) -> list[Facts]:
    """Heads whose sink no token holds, by threshold; the mean mass alone would be that of uniform attention too."""
    return [s for s in case.facts["sinks"] if (s["definition"], s["position"]) == ("gu2024", 0) and s["percent"] is not None]


def _gate(case: Case) -> Saying:
    taken = case.facts["gate_suppressed"]
    if taken is not None:
        yield "gate-suppresses", f"Its attention is gated: the gate takes away {percent(taken)} of the length of what heads write."


def _first_token(case: Case) -> Saying:
    first = case.facts["first_token"]
    if not has_sink(case.facts) or first is None or case.facts["sequences"] < 2:
        return
    name = f"number {first['token']}" if first["text"] is None else quoted(first["text"])
    if first["percent"] == 100:
        text = f"Every sequence begins with the token {name}: whether that token is the sink or its place is not told apart here."
        yield "first-token-constant", text
    elif first["percent"] <= STRONG:
        text = f"It is the place, not a special token: the sequences begin differently (most often with {name}, in {first['percent']:.0f} %)."
        yield "first-token-varies", text


def _random(case: Case) -> Saying:
    sink = _compared(case, "random")
    if sink is None:
        return
    number = f"On random tokens it is {with_interval(sink)}"
    if sink["percent"] >= (first_percent(case.facts) or 0) / 2:
        yield "random-keeps", f"{number}: the sink does not depend on what the text means (the paper: {spread(paper.RANDOM)})."
    else:
        yield "random-weakens", f"{number}: here the sink depends on familiar text (the paper's models keep it, {spread(paper.RANDOM)})."


def _repeat(case: Case) -> Saying:
    sink, natural = _compared(case, "repeat"), first_percent(case.facts) or 0
    if sink is None:
        return
    number = f"With one token repeated it is {with_interval(sink)}"
    if sink["percent"] < natural / 10:
        text = "a sink needs a first token that can be told from the others, and identical ones cannot be"
        yield "repeat-vanishes", f"{number}: {text} (the paper's models with rotary positions: 0 %)."
    elif sink["percent"] < natural / 2:
        yield "repeat-weakens", f"{number}: without content most of the sink goes, but places are still told apart a little."
    else:
        text = "the place alone makes the first token stand out, as learned position embeddings do"
        peers = f"the paper's GPT2-XL: {paper.REPEAT['GPT2-XL']:.1f} %; its models with rotary positions: 0 %"
        yield "repeat-keeps", f"{number}: {text} ({peers})."


def _compared(case: Case, wanted: str) -> Facts | None:
    """The same number on another input, where the main one has a sink to be compared with."""
    other = case.sibling(wanted)
    return headline(other) if other is not None and case.kind != wanted and has_sink(case.facts) else None


def _repeat_norms(case: Case) -> Saying:
    repeat, peak = case.sibling("repeat"), case.facts["norm_ratio"]
    if case.kind == "repeat" or repeat is None or peak is None or peak["ratio"] < LONG_NORM or repeat["by_layer"]["norm_others"] is None:
        return
    others = repeat["by_layer"]["norm_others"][peak["layer"]]
    if others is not None and others >= peak["first"] / 2:
        norms = f"norm {times(others)} against {times(peak['first'])}"
        text = f"Repeated, every token's hidden state becomes as long as the first one's on {case.kind} input ({norms})"
        yield "repeat-all-massive", f"{text}: all of them look like the sink, so none is."


def _depth(case: Case) -> Saying:
    shares = {layer: share for layer, share in enumerate(case.facts["by_layer"]["sink_percent"]) if share is not None}
    layers = [layer for layer, share in shares.items() if share >= CLEAR]
    if not has_sink(case.facts) or not layers:
        return
    best = max(layers, key=lambda layer: shares[layer])
    without = [layer for layer in shares if layer not in layers]
    gap = f"; in {layer_ranges(without)} fewer than a tenth of the heads have one" if without else ""
    yield "depth", f"The sinks are in layers {layer_ranges(layers)}, most of all in layer {best} ({shares[best]:.0f} % of its heads){gap}."


def _others(case: Case) -> Saying:
    texts, places = case.facts["other_tokens"], case.facts["other_positions"]
    if texts:
        names = [quoted(text["examples"][0]) if text["examples"] else f"number {text['token']}" for text in texts[:4]]
        more = f" (then {listed(names[1:])})" if names[1:] else ""
        top, where = texts[0], f"Other tokens are sinks too, most often {names[0]}{more}:"
    elif places:
        top, where = places[0], f"Other places are sinks too, most often position {places[0]['position']}:"
    else:
        if has_sink(case.facts):
            yield "only-first", "No other token or place is a sink in as many as a twentieth of the sequences."
        return
    text = f"{where} in {top['percent']:.0f} % of the sequences, for {top['heads_percent']:.0f} % of the heads there"
    yield "other-sinks", f"{text}, in {span(top['first_layer'], top['last_layer'])}."


def _massive(case: Case) -> Saying:
    found, layers = case.facts["massive_activations"], case.facts["layers"]
    if found:
        top = found[0]
        who = "The first token" if top["position"] == 1 else f"The token at position {top['position']}"
        text = f"{who} carries a massive activation: dimension {top['dimension']} of its hidden state reaches {times(top['value'])}, "
        text += f"{times(top['ratio'])} times the median, from {state(top['first_layer'], layers)} to {state(top['last_layer'], layers)}."
        yield "massive-activations", text
    elif found is not None:
        yield "no-massive-activations", "No hidden activation at a fixed place is above 100 and 1,000 times the median (2402.17762)."


def _long_state(case: Case) -> Saying:
    ratio = case.facts["norm_ratio"]
    if ratio is not None and ratio["ratio"] >= LONG_NORM:
        where = f"{state(ratio['layer'], case.facts['layers'])}: norm {times(ratio['first'])} against {times(ratio['others'])}"
        yield "long-first-state", f"The first token's hidden state is up to {times(ratio['ratio'])} times as long as the others' ({where})."


def _values(case: Case) -> Saying:
    value, share = case.facts["value_norm_ratio"], case.facts["contribution"]
    if value is None or not has_sink(case.facts):
        return
    what = "what the first token writes per unit of attention" if value["of"] == "norm.output" else "the first token's value"
    number = f"Where it is the sink, {what} is {times(value['ratio'])} times as long as the others'"
    if share is not None:
        number += f": it takes {share['attention_percent']:.0f} % of the attention and makes {share['output_percent']:.0f} % of the output"
    if value["ratio"] < NO_OP:
        yield "values-no-op", f"{number}. That is closer to a place to do nothing (a no-op) than to a broadcast (2606.08105)."
    elif value["ratio"] > BROADCAST:
        yield "values-carry", f"{number}. It carries something: closer to a broadcast than to a place to do nothing (2606.08105)."
    else:
        yield "values-between", f"{number}. That is between a place to do nothing and a broadcast (2606.08105)."


def _length(case: Case) -> Saying:
    same = [(facts["length"], first_percent(facts)) for name, facts in case.entry["inputs"].items() if base(name) == case.kind]
    known = sorted((length, value) for length, value in same if value is not None)
    if len(known) > 1:
        (short, before), (long, after) = known[0], known[-1]
        trend = "falls" if after < before - 1 else "rises" if after > before + 1 else "hardly changes"
        note = ", as in the paper's Fig. 3" if trend == "falls" else ""
        yield "length-trend", f"From {short} to {long} tokens the percentage {trend}: {percent(before)} to {percent(after)}{note}."


def _epsilon(case: Case) -> Saying:
    known = [s for s in case.facts["sinks"] if (s["definition"], s["position"]) == ("gu2024", 1) and s["percent"] is not None]
    found = {s["epsilon"]: s["percent"] for s in known}
    if len(found) > 1:
        parts = [f"{percent(found[epsilon])} above {epsilon:g}" for epsilon in sorted(found)]
        yield "epsilon-trend", f"How many heads count depends on the threshold: {listed(parts)}."


FINDINGS: tuple[Callable[[Case], Saying], ...] = (
    _sink, _asked, _paper, _virtual, _gate, _first_token, _random, _repeat, _repeat_norms, _depth, _others, _massive, _long_state, _values,
    _length, _epsilon,
)  # fmt: skip

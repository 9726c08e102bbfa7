"""What happens to connections to a Service, and why; the same live and offline. Pure.

`packets.decide` is the one table of what the rules of all modes do with a packet; `build` makes a `ServicePortReport`
of a plan, `checks`, `host` and `unserved` find likely causes as findings, `answer` resolves a question. Nothing here
reads the kernel or the clock: a `View` brings everything. Sentences are made by `wording`.

A change of what a mode does with packets must also change `packets`, or the end-to-end matrix and
`test_explain_agrees_with_traffic` fail. A new field of a report must be added to docs/json.md.
"""

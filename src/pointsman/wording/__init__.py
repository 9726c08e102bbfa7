"""English for people, made from codes and parameters.

Promise: every sentence about an object, a Service or a configuration is written here, once; the packages that find
something out produce a `Finding` or an outcome and never text. `describe` fills in message and remedy where a finding
leaves the program: a log line, an event, an answer of the control socket.

A change that adds a `Code` must also add its text to `wording.findings`; a test compares the two.
"""

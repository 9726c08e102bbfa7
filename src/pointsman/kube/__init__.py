"""The API server: access, credentials, requests, list and watch, events.

Promise: every failure is a KubeError whose message can be logged: no header, no token, no proxy password. `ListWatch.follow`
delivers differences only, never a relist, and deletes nothing while the server is unreachable.

Invariants: bytes, depth and time of everything that a server sends are limited; one object that cannot be decoded is left
out by name and the others are kept. Credentials follow their files without a restart. Nothing depends on events that are
sent to the server: they are queued, limited and dropped.

A change that decodes another field must also name it in `messages.py` and in the structs of `model/objects.py`, and be
tested in both formats. A change to requests must be tested over HTTP/1.1 and HTTP/2 (fixture `protocol`).
"""

"""What the proxy is doing, as values and as text: status, verification, lists of Services, traffic, fleets. Pure.

Values are built from an `explain.View` or decoded from the control socket; text is laid out by `screen`. Nothing here
decides what is wrong: that is in conditions and findings.
"""

"""`Received`: a durable log in front of flows, for records that cannot be read again.

`log_state.py` has the rules, pure. `segments.py` says how the log lies in a store. `received_log.py` carries the rules
out; `doors.py` is where records arrive: HTTP, lines, or a generator. `received_actor.py` is the process of all
this, and `received.py` what users name.
"""

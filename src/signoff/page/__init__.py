"""The page: pipelines to look at in a browser, and dead letters to replay. `signoff run FILE --ui PORT`
serves it for one pipeline; a service mounts the same pages for many (`mounting`).

It reads what is durable (ledger, logs, status files) in a process of its own: nothing on the way of an event
waits for it, and a run does not notice when it is slow or killed (docs/decisions/0030).

Invariants: every text that others have sent is escaped, secrets in it are masked and control characters
written out, by the one way all texts take into a template (`rendering`). Nothing changes by a GET; every POST
has a token of its visitor and comes from the same origin (`forms`). Whether a visitor may change anything is
decided by who mounts the pages.
"""

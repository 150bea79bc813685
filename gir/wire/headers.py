"""Header names of both hops, and which of them may cross a trust boundary.

All names are lower-case bytes, as the relay engine delivers them.
"""

REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"
TRACESTATE = b"tracestate"

# Router to agent, and routers to routers. Stripped from clients unless policy trusts the caller.
HOPS = b"x-gir-hops"
CRITICALITY = b"x-gir-criticality"
DEADLINE_MS = b"x-gir-deadline-ms"
"""Milliseconds the request may still take; relative, so that clocks need not agree."""
TENANT = b"x-gir-tenant"
CLUSTER_PIN = b"x-gir-cluster-pin"
SESSION = b"x-session-id"
CANARY = b"x-gir-canary"
"""Tester's override of a canary draw: the target's model name."""
PRIORITY_OBJECTIVE = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")

# Answers.
ORIGIN = b"x-gir-origin"
"""Who made an error answer up: `gir` or `agent`. An engine's own answer does not carry it."""
CLUSTER = b"x-gir-cluster"
REASON = b"x-gir-reason"
ATTEMPTS = b"x-gir-attempts"
MODEL = b"x-gir-model"
POD = b"x-gir-pod"
POLICY_VERSION = b"x-gir-policy-version"
RETRY_AFTER = b"retry-after"
SHOULD_RETRY = b"x-should-retry"

CONTROL_PREFIXES = (b"x-gir-", b"x-gateway-", b"x-llm-d-")
"""Names by which callers could steer routing; only trusted callers keep them."""

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"expect",
        b"content-length",
        b"host",
    }
)
"""Never forwarded: they describe one connection, and the relay writes its own framing and Host."""

FORWARDED_REQUEST = frozenset(
    {
        b"accept",
        b"accept-language",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-type",
        b"openai-beta",
        b"user-agent",
        b"x-session-id",
        b"x-stainless-retry-count",
        b"baggage",
        TRACESTATE,
    }
)
"""The allow-list from client to engine. Everything else stays here, credentials first of all."""

NOT_RETURNED = HOP_BY_HOP | {b"server", b"date", b"set-cookie", b"alt-svc"}
"""Upstream answer headers that do not reach the client. The others pass, whatever they are."""

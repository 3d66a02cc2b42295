"""The dashboards: all services, and one service."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, Panel, VariableRefresh

from monitoring.panels import SOURCE, bars, heat, lines, rows

_SOME = 'namespace=~"$namespace",service!=""'
_ONE = 'namespace=~"$namespace",service=~"$service"'
_BOTH = 'namespace=~"$namespace",service=~"($service)(-candidate)?"'
"""The pods of a candidate have its service's name with this suffix."""
_EACH = "{{namespace}}/{{service}}"
_BY = "by (namespace, service)"
_PODS = "by (pod)"


def _rate(metric: str, of: str) -> str:
    return f"rate({metric}{{{of}}}[$__rate_interval])"


def _quantile(share: float, metric: str) -> tuple[str, str]:
    buckets = _rate(f"shoal_proxy_{metric}_seconds_bucket", _ONE)
    return f"histogram_quantile({share}, sum by (le) ({buckets}))", f"{100 * share:g} %"


def _late_or_failed(of: str, by: str) -> str:
    late, failed = (
        _rate("shoal_proxy_late_answers_total", of),
        _rate("shoal_proxy_requests_total", f'{of},status=~"5.."'),
    )
    return f"sum {by} ({late} or {failed}) / sum {by} ({_rate('shoal_proxy_requests_total', of)})"


_READY_OF_ALL = 'shoal_operator_service_condition{condition="Ready",namespace=~"$namespace"}'
_UNREADY = 'shoal_operator_service_condition{condition="Ready",status!="True",namespace=~"$namespace"}'


FLEET: Mapping[str, Sequence[Builder[Panel]]] = {
    "Services": (
        lines(
            "Services by readiness", "short",
            "Services by the status of their condition Ready. False: see the table for the service and the reason. Unknown: starting.",
            (f'count by (status) ({_READY_OF_ALL})', "{{status}}"),
            stacked=True,
        ),
        rows(
            "Services that are not ready",
            "docs/how-to/reasons.md explains each reason; `kubectl describe infsvc` shows the message.",
            f'sum by (namespace, service, status, reason) ({_UNREADY})',
        ),
        lines(
            "Late or failed", "percentunit",
            "Share of responses that were late or failed. Above 1 % the monthly error budget does not last: see the service's dashboard.",
            (_late_or_failed(_SOME, _BY), _EACH), steps=(0.01, 0.05),
        ),
    ),
    "Load": (
        lines(
            "req/s", "reqps", "Requests answered, including errors. A service that drops to zero has lost its clients: check its route.",
            (f"sum {_BY} ({_rate('shoal_proxy_requests_total', _SOME)})", _EACH), stacked=True,
        ),
        lines(
            "rejected/s by reason", "reqps",
            "queue_rows, queue_bytes and late: too few replicas. runtime_away: the runtime starts or crashes. connections: clients do not reuse them.",
            (f"sum by (reason) ({_rate('shoal_proxy_rejections_total', _SOME)})", "{{reason}}"), stacked=True,
        ),
        lines(
            "queued", "short", "Rows in the queues of all replicas. A queue that keeps growing ends in rejections: add replicas.",
            (f"sum {_BY} (shoal_proxy_queue_rows{{{_SOME}}})", _EACH), stacked=True,
        ),
        lines(
            "utilization", "percentunit",
            "Requested rows as a share of the capacity, in the busiest replica. Above 100 %: too few replicas.",
            (f"max {_BY} (shoal_proxy_demand{{{_SOME}}})", _EACH), steps=(0.8, 1.0),
        ),
        lines(
            "Held by the activator", "short",
            "Requests for services at zero replicas, held until a replica is ready. Held for minutes: the service does not start.",
            ('sum by (pod) (shoal_proxy_queue_requests{pod=~".*activator.*"})', "{{pod}}"),
        ),
    ),
    "Replicas": (
        lines(
            "replicas ready", "short", "Ready replicas by service. Desired ones that are not ready wait for a node or load their model.",
            (f"sum {_BY} (shoal_operator_service_replicas_ready{{{_SOME}}})", _EACH), stacked=True,
        ),
        lines(
            "replicas", "short", "Replicas of all services. A lasting gap: pods that cannot be scheduled, or models that do not load.",
            (f"sum(shoal_operator_service_replicas{{{_SOME}}})", "existing"),
            (f"sum(shoal_operator_service_replicas_ready{{{_SOME}}})", "ready"),
        ),
        bars(
            "Replica-seconds", "s",
            "Replicas integrated over the displayed time: the cost of each service. High cost at low utilization: lower minReplicas, or scale to zero.",
            f"sum {_BY} (avg_over_time(shoal_operator_service_replicas{{{_SOME}}}[$__range])) * $__range_s", _EACH,
        ),
        lines(
            "Pods scraped by the operator", "reqps",
            "Every pod is scraped every 2 s. unreachable: check NetworkPolicies and the pod. None: no operator is the leader.",
            ("sum by (outcome) (rate(shoal_operator_scrapes_total[$__rate_interval]))", "{{outcome}}"),
        ),
    ),
    "Operator": (
        lines(
            "Leader", "short", "One operator is active, the others stand by. None for more than a minute: check its pods and the Lease.",
            ("shoal_operator_leader", "{{pod}}"), stacked=True,
        ),
        lines(
            "Reconciliations", "reqps",
            "failed: the API server rejected a request or did not respond; the operator retries. The next panel shows the reason, the operator's log the service.",
            ("sum by (outcome) (rate(shoal_operator_looks_total[$__rate_interval]))", "{{outcome}}"), stacked=True,
        ),
        lines(
            "Failed reconciliations", "reqps", "By reason. forbidden: RBAC. refused: an admission policy, or the spec. unreachable and server: the API server.",
            ("sum by (reason) (rate(shoal_operator_look_errors_total[$__rate_interval]))", "{{reason}}"), stacked=True,
        ),
        lines(
            "Duration of a reconciliation", "s", "For one service, including all reads and writes. Seconds: the API server is slow, or throttles the operator.",
            *(
                (f"histogram_quantile({share}, sum by (le) (rate(shoal_operator_look_seconds_bucket[$__rate_interval])))", name)
                for share, name in ((0.5, "50 %"), (0.99, "99 %"))
            ),
        ),
        lines(
            "Lag", "s",
            "Longest wait of a service for a reconciliation, and for a scrape of its pods. Scaling is delayed by as much.",
            ("max(shoal_operator_queue_age_seconds)", "reconciliation"), ("max(shoal_operator_scrape_age_seconds)", "scrape"),
        ),
        lines(
            "Requests to the API server", "reqps", "Without watches; almost none while services are idle. Lasting 409s and 422s: a conflicting writer.",
            ("sum by (method, status) (rate(shoal_operator_api_requests_total[$__rate_interval]))", "{{method}} {{status}}"),
        ),
        lines(
            "Services with pods of another operator", "short",
            "Services whose upgrade is pending or failed. `kubectl get infsvc` lists them; docs/explanation/upgrades.md explains the order.",
            ("sum by (state) (shoal_operator_upgrades)", "{{state}}"), stacked=True,
        ),
    ),
}  # fmt: skip

SERVICE: Mapping[str, Sequence[Builder[Panel]]] = {
    "Clients": (
        lines(
            "req/s by status", "reqps", "4xx: client errors. 500: the model failed. 503: too little capacity. 504: deadline exceeded.",
            (f"sum by (status) ({_rate('shoal_proxy_requests_total', _ONE)})", "{{status}}"), stacked=True,
        ),
        lines(
            "latency", "s",
            "From arrival to response, in the replica. Compare with the time in the queue and in the runtime to find the larger part.",
            _quantile(0.5, "request"), _quantile(0.95, "request"), _quantile(0.99, "request"),
        ),
        lines(
            "Late or failed", "percentunit", "Share of responses that were late or failed; the alerts on the objective use it.",
            (_late_or_failed(_ONE, "by (service)"), "{{service}}"), steps=(0.01, 0.05),
        ),
        lines(
            "rejected/s by reason", "reqps",
            "queue_rows, queue_bytes and late: raise maxReplicas. runtime_away: check the runtime's log. invalid and body_too_large: client errors.",
            (f"sum by (reason) ({_rate('shoal_proxy_rejections_total', _ONE)})", "{{reason}}"), stacked=True,
        ),
        lines(
            "Failed rows and late responses", "cps",
            "Failed rows: the runtime's log has the exception. Late responses: the objective is too tight, or there are too few replicas.",
            (f"sum(rate(shoal_proxy_failed_rows_total{{{_ONE}}}[$__rate_interval]))", "failed rows"),
            (f"sum(rate(shoal_proxy_late_answers_total{{{_ONE}}}[$__rate_interval]))", "late responses"),
        ),
        rows(
            "Conditions", "The current conditions; `kubectl describe infsvc` shows the messages.",
            f"sum by (condition, status, reason) (shoal_operator_service_condition{{{_ONE}}})",
        ),
    ),
    "Batches": (
        lines(
            "Time in the queue", "s", "Long with small batches: shapes or parameters that do not share a batch. Long with full batches: too few replicas.",
            _quantile(0.5, "queue"), _quantile(0.95, "queue"),
        ),
        heat(
            "batch size", "short", "Rows per batch. Small under load: check maxBatchSize, and /v1/explain for rows that do not share a batch.",
            f"sum by (le) (increase(shoal_proxy_batch_rows_bucket{{{_ONE}}}[$__rate_interval]))",
        ),
        lines(
            "batch size mean", "short", "The mean, and the limit by the model and its memory. A limit that fell: the device ran out of memory.",
            (f"sum({_rate('shoal_proxy_batch_rows_sum', _ONE)}) / sum({_rate('shoal_proxy_batch_rows_count', _ONE)})", "mean"),
            (f"min(shoal_proxy_batch_rows_limit{{{_ONE}}})", "limit"),
        ),
        lines(
            "Padding", "percentunit", "Share of computed elements that is padding. Above 30 %: declare buckets closer to the lengths that clients send.",
            (f"sum({_rate('shoal_proxy_padded_elements_total', _ONE)}) / sum({_rate('shoal_proxy_elements_total', _ONE)})", "padding"),
            steps=(0.3, 0.6),
        ),
        lines(
            "Time in the runtime", "s", "Of a batch, from sending to the result. It grows with the batch size; growth at constant size: a busy device.",
            _quantile(0.5, "runtime"), _quantile(0.95, "runtime"),
        ),
        lines(
            "Runtimes", "short", "Ready runtimes, and runtimes lost. More than one lost: a crash; see the end of the container's log.",
            (f"sum(shoal_proxy_runtime_ready{{{_ONE}}})", "ready"),
            (f"sum(increase(shoal_proxy_runtime_losses_total{{{_ONE}}}[$__rate_interval]))", "lost"),
        ),
    ),
    "Rollout of a candidate": (
        lines(
            "Rows by revision", "cps", "Rows of clients that each revision runs. shadow: copies of batches that the candidate runs for comparison.",
            (f"sum by (role) ({_rate('shoal_proxy_rollout_rows_total', _ONE)})", "{{role}}"),
        ),
        lines(
            "Failed rows by revision", "percentunit", "Share of the rows of each revision that fail. A candidate above compare.errors.maxShare is rolled back.",
            (
                f"sum by (role) ({_rate('shoal_proxy_rollout_failed_rows_total', _ONE)})"
                f" / sum by (role) ({_rate('shoal_proxy_rollout_rows_total', _ONE)})",
                "{{role}}",
            ),
        ),
        lines(
            "Disagreement by output", "percentunit", "Share of compared rows in which the candidate differs beyond the tolerance; `shoal rollout status` has the verdict.",
            (
                f"sum by (output) ({_rate('shoal_proxy_rollout_disagreeing_rows_total', _ONE)})"
                f" / sum by (output) ({_rate('shoal_proxy_rollout_compared_rows_total', _ONE)})",
                "{{output}}",
            ),
        ),
        lines(
            "latency by revision", "s", "Of requests that each revision serves, in the replica. Batches differ in size: the verdict compares equal ones.",
            *(
                (f"histogram_quantile({share}, sum by (service, le) ({_rate('shoal_proxy_request_seconds_bucket', _BOTH)}))", f"{{{{service}}}} {100 * share:g} %")
                for share in (0.5, 0.99)
            ),
        ),
        lines(
            "Time in the runtime by revision", "s", "Of a batch, 95th percentile. It grows with the batch size, which differs between the revisions.",
            (f"histogram_quantile(0.95, sum by (service, le) ({_rate('shoal_proxy_runtime_seconds_bucket', _BOTH)}))", "{{service}}"),
        ),
        lines(
            "req/s by revision", "reqps", "Responses by revision. Those of the candidate include copies of batches.",
            (f"sum by (service) ({_rate('shoal_proxy_requests_total', _BOTH)})", "{{service}}"), stacked=True,
        ),
    ),
    "Steps of a graph": (
        lines(
            "Time of each step", "s", "95th percentile, from the request to a step's model until the response. Check the service of the slowest step.",
            (
                f"histogram_quantile(0.95, sum by (step, le) ({_rate('shoal_proxy_step_seconds_bucket', _ONE)}))",
                "{{step}}",
            ),
        ),
        lines(
            "Failures of each step", "reqps", "The step's model failed, rejected the request or did not respond; responses name the step and the cause.",
            (f"sum by (step) ({_rate('shoal_proxy_step_failures_total', _ONE)})", "{{step}}"),
        ),
    ),
    "Scaling": (
        lines(
            "replicas", "short", "Desired by the autoscaler, and ready. For the reason see the condition ScalingActive (`kubectl describe infsvc`).",
            (f"sum(shoal_operator_scaling_desired{{{_ONE}}})", "desired"),
            (f"sum(shoal_operator_scaling_ready{{{_ONE}}})", "ready"),
        ),
        lines(
            "Autoscaler input", "short", "Rows in the system divided by the target per replica give the desired replicas. In panic mode no replica is removed.",
            (f"sum(shoal_operator_scaling_rows{{{_ONE}}})", "rows"),
            (f"sum(shoal_operator_scaling_target{{{_ONE}}})", "target per replica"),
            (f"sum(shoal_operator_scaling_panic{{{_ONE}}})", "panic"),
        ),
        lines(
            "Offered rows", "cps", "Rows requested, including rejected ones: the load with enough replicas.",
            (f"sum(shoal_operator_scaling_offered_rows_per_second{{{_ONE}}})", "offered"),
            (f"sum({_rate('shoal_proxy_rows_total', _ONE)})", "sent to the model"),
        ),
    ),
    "Pods": (
        lines(
            "Rows by pod", "cps", "Pods with much less load than others: clients with few connections, or a slow pod.",
            (f"sum {_PODS} ({_rate('shoal_proxy_rows_total', _ONE)})", "{{pod}}"),
        ),
        lines(
            "utilization by pod", "percentunit", "Requested rows as a share of the capacity.",
            (f"max {_PODS} (shoal_proxy_demand{{{_ONE}}})", "{{pod}}"), steps=(0.8, 1.0),
        ),
        lines(
            "Device memory by pod",
            "bytes",
            "In use, and total. Close to the total, large batches fail and are halved: lower maxBatchSize. Empty without a GPU.",
            (f"max {_PODS} (shoal_proxy_device_memory_used_bytes{{{_ONE}}})", "{{pod}}"),
            (f"max(shoal_proxy_device_memory_bytes{{{_ONE}}})", "total"),
        ),
        lines(
            "p95 by pod", "s", "Expected latency of a request that arrives now, 95th percentile.",
            (f"max {_PODS} (shoal_proxy_expected_wait_seconds{{{_ONE}}})", "{{pod}}"),
        ),
    ),
}  # fmt: skip


def make(uid: str, title: str, parts: Mapping[str, Sequence[Builder[Panel]]], variables: Sequence[str]) -> Dashboard:
    """Return a dashboard with rows of panels, and variables that filter them."""
    board = dashboard.Dashboard(title).uid(uid).tags(["shoal"]).refresh("30s").time("now-1h", "now").editable()
    board.with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus"))
    for name in variables:
        board.with_variable(_variable(name))
    for heading, panels in parts.items():
        board.with_row(dashboard.Row(heading))
        for panel in panels:
            board.with_panel(panel)
    return board.build()


def _variable(name: str) -> dashboard.QueryVariable:
    narrowed = '{namespace=~"$namespace"}' if name == "service" else ""
    query = f"label_values(shoal_operator_service_replicas{narrowed}, {name})"
    variable = (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    variable.datasource(DataSourceRef(type_val=SOURCE.type_val, uid=SOURCE.uid))
    # One service at a time; all namespaces by default.
    return variable if name == "service" else variable.include_all(include_all=True).multi(multi=True).all_value(".*")


def all_dashboards() -> dict[str, Dashboard]:
    """Return the dashboards by file name."""
    return {
        "fleet": make("shoal-fleet", "Shoal: fleet", FLEET, ["namespace"]),
        "service": make("shoal-service", "Shoal: one service", SERVICE, ["namespace", "service"]),
    }

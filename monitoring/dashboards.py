"""The dashboards: the fleet, and one service."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Dashboard, DataSourceRef, Panel, VariableRefresh

from monitoring.panels import SOURCE, bars, heat, lines, rows

_SOME = 'namespace=~"$namespace",service!=""'
_ONE = 'namespace=~"$namespace",service=~"$service"'
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
            "How many are Ready, by their condition. False waits for somebody: the table beside says which and why; Unknown is on its way.",
            (f'count by (status) ({_READY_OF_ALL})', "{{status}}"),
            stacked=True,
        ),
        rows(
            "Services that are not ready",
            "The reason is explained in docs/how-to/reasons.md; `kubectl describe infsvc` has the sentence.",
            f'sum by (namespace, service, status, reason) ({_UNREADY})',
        ),
        lines(
            "Late or failed", "percentunit",
            "Answers that came too late or were errors of the service, by all. Above one percent the budget of a month does not last: see the service's own dashboard.",
            (_late_or_failed(_SOME, _BY), _EACH), steps=(0.01, 0.05),
        ),
    ),
    "Load": (
        lines(
            "Requests", "reqps", "Answered, errors included. One that falls to nothing has lost its callers: see its route.",
            (f"sum {_BY} ({_rate('shoal_proxy_requests_total', _SOME)})", _EACH), stacked=True,
        ),
        lines(
            "Refusals by reason", "reqps",
            "queue_rows, queue_bytes and late: too few replicas. runtime_away: the runtime starts or crashes. connections: callers do not keep theirs.",
            (f"sum by (reason) ({_rate('shoal_proxy_rejections_total', _SOME)})", "{{reason}}"), stacked=True,
        ),
        lines(
            "Waiting rows", "short", "In the queues of all pods. A queue that only grows ends in refusals: add replicas.",
            (f"sum {_BY} (shoal_proxy_queue_rows{{{_SOME}}})", _EACH), stacked=True,
        ),
        lines(
            "Saturation", "percentunit",
            "Rows asked for by rows that can be served, in the busiest pod. Above 100 % there are too few replicas.",
            (f"max {_BY} (shoal_proxy_demand{{{_SOME}}})", _EACH), steps=(0.8, 1.0),
        ),
        lines(
            "Held in the waiting room", "short",
            "Requests for services that sleep. They leave when a pod is ready: held for minutes, the service does not wake.",
            ('sum by (pod) (shoal_proxy_queue_requests{pod=~".*waiting-room.*"})', "{{pod}}"),
        ),
    ),
    "Replicas": (
        lines(
            "Ready replicas", "short", "By service. What is asked for and not ready waits for a node or loads its model.",
            (f"sum {_BY} (shoal_operator_service_replicas_ready{{{_SOME}}})", _EACH), stacked=True,
        ),
        lines(
            "Replicas of the fleet", "short", "A gap that stays: pods that cannot be placed, or models that do not load.",
            (f"sum(shoal_operator_service_replicas{{{_SOME}}})", "there"),
            (f"sum(shoal_operator_service_replicas_ready{{{_SOME}}})", "ready"),
        ),
        bars(
            "Replica-seconds", "s",
            "What each service had of pods in the time that is looked at: what it costs. Much of it at low saturation: lower minReplicas, or let it sleep.",
            f"sum {_BY} (avg_over_time(shoal_operator_service_replicas{{{_SOME}}}[$__range])) * $__range_s", _EACH,
        ),
        lines(
            "Pods read by the operator", "reqps",
            "Every pod is read every other second. unreachable: see NetworkPolicies and the pod; none at all: no operator leads.",
            ("sum by (outcome) (rate(shoal_operator_scrapes_total[$__rate_interval]))", "{{outcome}}"),
        ),
    ),
    "Operator": (
        lines(
            "Who leads", "short", "One operator writes, the others stand by. None for more than a minute: see its pods and the Lease.",
            ("shoal_operator_leader", "{{pod}}"), stacked=True,
        ),
        lines(
            "Looks at services", "reqps",
            "failed: the API server refused or did not answer, and it is tried again; the panel below has the reason, the operator's log the service.",
            ("sum by (outcome) (rate(shoal_operator_looks_total[$__rate_interval]))", "{{outcome}}"), stacked=True,
        ),
        lines(
            "Looks cut short", "reqps", "By reason. forbidden: its rights; refused: an admission policy, or the spec; unreachable and server: the API server.",
            ("sum by (reason) (rate(shoal_operator_look_errors_total[$__rate_interval]))", "{{reason}}"), stacked=True,
        ),
        lines(
            "Time of a look", "s", "Of one service, with all that is read and written. Seconds: the API server is slow, or holds the operator back.",
            *(
                (f"histogram_quantile({share}, sum by (le) (rate(shoal_operator_look_seconds_bucket[$__rate_interval])))", name)
                for share, name in ((0.5, "50 %"), (0.99, "99 %"))
            ),
        ),
        lines(
            "Behind", "s",
            "For how long the service has waited that waited longest: for a look, and for its pods to be read. It scales as late as that.",
            ("max(shoal_operator_queue_age_seconds)", "a look"), ("max(shoal_operator_scrape_age_seconds)", "a reading"),
        ),
        lines(
            "Requests to the API server", "reqps", "Without the watches. Of an idle fleet almost none; 409s and 422s that stay: somebody else writes the same.",
            ("sum by (method, status) (rate(shoal_operator_api_requests_total[$__rate_interval]))", "{{method}} {{status}}"),
        ),
        lines(
            "Services with pods of another operator", "short",
            "They wait for their turn, or failed: `kubectl get infsvc` names them, docs/explanation/upgrades.md has the order.",
            ("sum by (state) (shoal_operator_upgrades)", "{{state}}"), stacked=True,
        ),
    ),
}  # fmt: skip

SERVICE: Mapping[str, Sequence[Builder[Panel]]] = {
    "Callers": (
        lines(
            "Requests by status", "reqps", "400s are the callers' mistakes; 500 is the model's, 503 too little capacity, 504 a deadline.",
            (f"sum by (status) ({_rate('shoal_proxy_requests_total', _ONE)})", "{{status}}"), stacked=True,
        ),
        lines(
            "Latency", "s",
            "From arrival to answer, in the pod. Compare with the time in the queue and in the runtime: the larger part is what to mend.",
            _quantile(0.5, "request"), _quantile(0.95, "request"), _quantile(0.99, "request"),
        ),
        lines(
            "Late or failed", "percentunit", "Answers too late or errors, by all: what the alerts on the objective go by.",
            (_late_or_failed(_ONE, "by (service)"), "{{service}}"), steps=(0.01, 0.05),
        ),
        lines(
            "Refusals by reason", "reqps",
            "queue_rows, queue_bytes and late: raise maxReplicas. runtime_away: see the runtime's log. invalid and body_too_large: the callers'.",
            (f"sum by (reason) ({_rate('shoal_proxy_rejections_total', _ONE)})", "{{reason}}"), stacked=True,
        ),
        lines(
            "Failed rows and late answers", "cps",
            "Rows that the model failed: its log says what it raised. Late answers: the objective is too tight, or replicas too few.",
            (f"sum(rate(shoal_proxy_failed_rows_total{{{_ONE}}}[$__rate_interval]))", "failed rows"),
            (f"sum(rate(shoal_proxy_late_answers_total{{{_ONE}}}[$__rate_interval]))", "late answers"),
        ),
        rows(
            "Conditions", "What the operator says of it now; `kubectl describe infsvc` has the sentences.",
            f"sum by (condition, status, reason) (shoal_operator_service_condition{{{_ONE}}})",
        ),
    ),
    "Batches": (
        lines(
            "Time in the queue", "s", "Long with small batches: shapes or parameters that never share a batch. Long with full ones: too few replicas.",
            _quantile(0.5, "queue"), _quantile(0.95, "queue"),
        ),
        heat(
            "Batch sizes", "short", "Rows per batch. All of them small under load: see maxBatchSize, and what keeps rows apart in /v1/explain.",
            f"sum by (le) (increase(shoal_proxy_batch_rows_bucket{{{_ONE}}}[$__rate_interval]))",
        ),
        lines(
            "Rows per batch", "short", "The mean, and the limit after what the model and its memory allow: one that fell ran out of memory.",
            (f"sum({_rate('shoal_proxy_batch_rows_sum', _ONE)}) / sum({_rate('shoal_proxy_batch_rows_count', _ONE)})", "mean"),
            (f"min(shoal_proxy_batch_rows_limit{{{_ONE}}})", "limit"),
        ),
        lines(
            "Padding", "percentunit", "The share of what the model computes that is padding. Above 30 %: declare buckets nearer to what callers send.",
            (f"sum({_rate('shoal_proxy_padded_elements_total', _ONE)}) / sum({_rate('shoal_proxy_elements_total', _ONE)})", "padding"),
            steps=(0.3, 0.6),
        ),
        lines(
            "Time in the runtime", "s", "Of a batch, from sending it until its answer. It grows with the batch; more at the same size: a busy device.",
            _quantile(0.5, "runtime"), _quantile(0.95, "runtime"),
        ),
        lines(
            "Runtime", "short", "Ready pods' runtimes, and how often one went away: more than once is a crash, and its container's last words say why.",
            (f"sum(shoal_proxy_runtime_ready{{{_ONE}}})", "ready"),
            (f"sum(increase(shoal_proxy_runtime_losses_total{{{_ONE}}}[$__rate_interval]))", "lost"),
        ),
    ),
    "Steps of a graph": (
        lines(
            "Time of each step", "s", "95 %, from asking a step's model until its answer. The longest is what to mend: see the service behind it.",
            (
                f"histogram_quantile(0.95, sum by (step, le) ({_rate('shoal_proxy_step_seconds_bucket', _ONE)}))",
                "{{step}}",
            ),
        ),
        lines(
            "Failures of each step", "reqps", "Its model failed, refused or did not answer; answers name the step, and say why.",
            (f"sum by (step) ({_rate('shoal_proxy_step_failures_total', _ONE)})", "{{step}}"),
        ),
    ),
    "Scaling": (
        lines(
            "Replicas", "short", "Decided by the law, and ready. For its reasons: `kubectl describe infsvc`, condition ScalingActive.",
            (f"sum(shoal_operator_scaling_desired{{{_ONE}}})", "decided"),
            (f"sum(shoal_operator_scaling_ready{{{_ONE}}})", "ready"),
        ),
        lines(
            "What it is decided by", "short", "Rows in the system and what one replica is for: their quotient is what is wanted. In panic nothing is taken away.",
            (f"sum(shoal_operator_scaling_rows{{{_ONE}}})", "rows"),
            (f"sum(shoal_operator_scaling_target{{{_ONE}}})", "for one replica"),
            (f"sum(shoal_operator_scaling_panic{{{_ONE}}})", "panic"),
        ),
        lines(
            "Rows asked for", "cps", "Refused ones included: what there would be to do with replicas enough.",
            (f"sum(shoal_operator_scaling_offered_rows_per_second{{{_ONE}}})", "asked for"),
            (f"sum({_rate('shoal_proxy_rows_total', _ONE)})", "sent to the model"),
        ),
    ),
    "Pods": (
        lines(
            "Rows by pod", "cps", "Pods that get much less than others: callers that keep few connections, or a pod that is slow.",
            (f"sum {_PODS} ({_rate('shoal_proxy_rows_total', _ONE)})", "{{pod}}"),
        ),
        lines(
            "Saturation by pod", "percentunit", "Rows asked for by rows that can be served.",
            (f"max {_PODS} (shoal_proxy_demand{{{_ONE}}})", "{{pod}}"), steps=(0.8, 1.0),
        ),
        lines(
            "Device memory by pod",
            "bytes",
            "In use, and all there is. Close to it, large batches fail and are halved: lower maxBatchSize. Nothing is shown where there is no GPU.",
            (f"max {_PODS} (shoal_proxy_device_memory_used_bytes{{{_ONE}}})", "{{pod}}"),
            (f"max(shoal_proxy_device_memory_bytes{{{_ONE}}})", "all"),
        ),
        lines(
            "Expected wait by pod", "s", "Of a request that arrived now, 95th percentile.",
            (f"max {_PODS} (shoal_proxy_expected_wait_seconds{{{_ONE}}})", "{{pod}}"),
        ),
    ),
}  # fmt: skip


def make(uid: str, title: str, parts: Mapping[str, Sequence[Builder[Panel]]], variables: Sequence[str]) -> Dashboard:
    """Return a dashboard: its parts, each a row of panels, and the variables that choose what they show."""
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
    asked = f"label_values(shoal_operator_service_replicas{narrowed}, {name})"
    variable = (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query(asked)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    variable.datasource(DataSourceRef(type_val=SOURCE.type_val, uid=SOURCE.uid))
    # Of services one is looked at; of namespaces all, unless fewer are chosen.
    return variable if name == "service" else variable.include_all(include_all=True).multi(multi=True).all_value(".*")


def all_dashboards() -> dict[str, Dashboard]:
    """Return each dashboard by the name of its file."""
    return {
        "fleet": make("shoal-fleet", "Shoal: fleet", FLEET, ["namespace"]),
        "service": make("shoal-service", "Shoal: one service", SERVICE, ["namespace", "service"]),
    }

//! Counters and histograms, and their Prometheus text.
//!
//! A series is registered when it is first needed and its handle kept, so a request costs a look-up
//! by its route's template and two atomic additions, and no client can make up a label.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use bellglass_protocol::view::JobStatus;
use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    routes: HashMap<String, RouteMetrics>,
    /// Requests to addresses that do not exist.
    unmatched: RouteMetrics,
    /// Jobs that this process accepted.
    pub jobs_scheduled: Counter,
    jobs: Vec<(JobStatus, Gauge)>,
    store_up: Gauge,
    observed: AtomicU64,
}

#[derive(Default)]
struct RouteMetrics {
    methods: [MethodMetrics; METHODS.len()],
}

#[derive(Default)]
struct MethodMetrics {
    /// One for each status class from 1xx to 5xx.
    classes: [OnceLock<Counter>; CLASSES.len()],
    seconds: OnceLock<Histogram>,
}

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "HEAD", "OTHER"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
const SECONDS: [f64; 12] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Samples wait in memory until somebody asks for the text. After so many requests they are summed
/// up even if nobody asks.
const UPKEEP_EVERY: u64 = 1 << 14;

impl Metrics {
    pub(crate) fn new<'a>(templates: impl Iterator<Item = &'a str>) -> Self {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)
            .unwrap_or_else(|_| PrometheusBuilder::new())
            .build_recorder();
        describe(&recorder);
        let labels = vec![Label::from_static_parts("version", env!("CARGO_PKG_VERSION"))];
        gauge(&recorder, "bellglass_build_info", labels).set(1.0);
        let jobs = JobStatus::ALL.map(|status| {
            let labels = vec![Label::from_static_parts("status", status.as_str())];
            (status, gauge(&recorder, "bellglass_jobs", labels))
        });
        Self {
            routes: templates
                .map(|template| (template.to_owned(), RouteMetrics::default()))
                .collect(),
            unmatched: RouteMetrics::default(),
            jobs_scheduled: counter(&recorder, "bellglass_jobs_scheduled_total", Vec::new()),
            jobs: jobs.into(),
            store_up: gauge(&recorder, "bellglass_store_up", Vec::new()),
            handle: recorder.handle(),
            recorder,
            observed: AtomicU64::new(0),
        }
    }

    /// The text for a scraper; `counts` is how many jobs stand where, if the store could say.
    pub(crate) fn render(&self, counts: Option<Vec<(JobStatus, u64)>>) -> String {
        self.store_up.set(if counts.is_some() { 1.0 } else { 0.0 });
        if let Some(counts) = counts {
            for (status, gauge) in &self.jobs {
                let count = counts.iter().find(|(other, _)| other == status);
                gauge.set(count.map_or(0, |(_, count)| *count) as f64);
            }
        }
        self.handle.render()
    }
}

/// A request that is being answered.
pub(crate) struct Observed {
    path: Option<MatchedPath>,
    method: usize,
    started: Instant,
}

impl Observed {
    pub(crate) fn begin(request: &Request) -> Self {
        Self {
            path: request.extensions().get::<MatchedPath>().cloned(),
            method: method_index(request.method()),
            started: Instant::now(),
        }
    }
}

impl Metrics {
    /// The time is that until the answer begins; a stream may go on for long.
    pub(crate) fn observe(&self, observed: &Observed, status: StatusCode) {
        let Observed { path, method, started } = observed;
        let (method, took) = (*method, started.elapsed());
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1;
        let path = path.as_ref();
        let known = path.and_then(|path| self.routes.get_key_value(path.as_str()));
        let (route, series) = match known {
            Some((template, series)) => (template.as_str(), &series.methods[method]),
            None => ("unmatched", &self.unmatched.methods[method]),
        };
        let labels = || {
            let method = Label::from_static_parts("method", METHODS[method]);
            vec![Label::new("route", route.to_owned()), method]
        };
        let seconds = series.seconds.get_or_init(|| {
            let key = Key::from_parts("bellglass_http_request_duration_seconds", labels());
            self.recorder.register_histogram(&key, &METADATA)
        });
        seconds.record(took);
        let requests = series.classes[class].get_or_init(|| {
            let mut labels = labels();
            labels.push(Label::from_static_parts("status", CLASSES[class]));
            counter(&self.recorder, "bellglass_http_requests_total", labels)
        });
        requests.increment(1);
        if self.observed.fetch_add(1, Ordering::Relaxed) % UPKEEP_EVERY == UPKEEP_EVERY - 1 {
            self.handle.run_upkeep();
        }
    }
}

fn method_index(method: &Method) -> usize {
    let last = METHODS.len() - 1;
    METHODS.iter().position(|known| *known == method.as_str()).unwrap_or(last)
}

const METADATA: Metadata<'static> = Metadata::new("bellglass_server", Level::INFO, None);

fn counter(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
}

fn gauge(recorder: &PrometheusRecorder, name: &'static str, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&Key::from_parts(name, labels), &METADATA)
}

fn describe(recorder: &PrometheusRecorder) {
    let counters = [
        ("bellglass_jobs_scheduled_total", "Jobs that this process accepted."),
        ("bellglass_http_requests_total", "Answered requests by route, method and status class."),
    ];
    for (name, text) in counters {
        recorder.describe_counter(name.into(), None, text.into());
    }
    let gauges = [
        ("bellglass_build_info", "The version that runs; always 1."),
        ("bellglass_jobs", "Jobs by status."),
        ("bellglass_store_up", "Whether the store answered when this text was made."),
    ];
    for (name, text) in gauges {
        recorder.describe_gauge(name.into(), None, text.into());
    }
    recorder.describe_histogram(
        "bellglass_http_request_duration_seconds".into(),
        Some(Unit::Seconds),
        "Time until an answer began, by route and method.".into(),
    );
}

//! `/statusz`: which program it is that answers, since when it runs, and what else it tells of itself.

use http::HeaderMap;
use serde_json::{Value, json};

use super::{Page, PageError};
use crate::time::Time;
use crate::version::{GIT_VERSION, MAJOR, MINOR};

/// Where the page is.
pub const PATH: &str = "/statusz";

/// A program that tells of itself.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Upstream's name of what it is.
    pub component: &'static str,
    /// When it began, where that is known.
    pub started: Option<Time>,
    /// What else can be read of it.
    pub paths: &'static [&'static str],
}

impl Program {
    /// The page in the form that is asked for.
    ///
    /// # Errors
    /// 406 where it has no such form.
    pub fn page(&self, now: Time, headers: &HeaderMap) -> Result<Page, PageError> {
        super::page(headers, (self.component, "Statusz"), || self.words(now), || self.fields(now))
    }

    /// For how many seconds it has run.
    fn uptime_s(&self, now: Time) -> u64 {
        self.started.map_or(0, |started| now.since(started).as_secs())
    }

    fn words(&self, now: Time) -> String {
        let up_s = self.uptime_s(now);
        let started = self.started.map(|at| at.timestamp().strftime("%a %b %e %H:%M:%S UTC %Y").to_string());
        let started = started.unwrap_or_default();
        format!(
            "Started: {started}\nUp: {} hr {:02} min {:02} sec\nBinary version: {}\nEmulation version: {MAJOR}.{MINOR}\n\
             Paths: {}\n",
            up_s / 3600,
            up_s / 60 % 60,
            up_s % 60,
            binary_version(),
            self.paths.join(" "),
        )
    }

    fn fields(&self, now: Time) -> Value {
        json!({
            "startTime": self.started.map(Time::rfc3339), "uptimeSeconds": self.uptime_s(now), "goVersion": "",
            "binaryVersion": binary_version(), "emulationVersion": format!("{MAJOR}.{MINOR}"), "paths": self.paths,
        })
    }
}

fn binary_version() -> &'static str {
    GIT_VERSION.strip_prefix('v').unwrap_or(GIT_VERSION)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn a_program_is_told_in_words_and_as_an_object() {
        let at = Time::from_unix_s;
        let program = Program { component: "kube-scheduler", started: Some(at(5)), paths: &["/healthz", "/metrics"] };
        let now = at(3_600 + 2 * 60 + 8);
        let mut headers = HeaderMap::new();
        let (_, text) = program.page(now, &headers).expect("a page");
        for line in [
            "\nkube-scheduler statusz\n",
            "\nStarted: Thu Jan  1 00:00:05 UTC 1970\n",
            "\nUp: 1 hr 02 min 03 sec\n",
            "\nEmulation version: 1.36\n",
            "\nPaths: /healthz /metrics\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text:?}");
        }
        let accept = "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let (_, text) = program.page(now, &headers).expect("a page");
        let object: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("config.k8s.io/v1alpha1"), &json!("Statusz")));
        assert_eq!(object["metadata"], json!({"name": "kube-scheduler"}));
        assert_eq!((&object["startTime"], &object["uptimeSeconds"]), (&json!("1970-01-01T00:00:05Z"), &json!(3723)));
        assert_eq!(object["paths"], json!(["/healthz", "/metrics"]));
    }
}

//! `Configuration` of EventRateLimit: how many events a second are taken, and of whom.
//!
//! Upstream: `plugin/pkg/admission/eventratelimit/apis/eventratelimit`.

use carrack_schema::error::FieldError;
use serde::Deserialize;
use serde_json::Value;

use super::buckets::Rate;
use crate::admission::configuration::check_kind;

const API_VERSION: &str = "eventratelimit.admission.k8s.io/v1alpha1";
const KIND: &str = "Configuration";

/// Of how many whose events are counted it is remembered, where nobody says.
const KEPT: usize = 4096;

/// Whose events are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// All of the server's.
    Server,
    /// Those in a namespace.
    Namespace,
    /// Those that a user writes.
    User,
    /// Those about an object from one source.
    SourceAndObject,
}

impl Of {
    const ALL: [Of; 4] = [Of::Namespace, Of::Server, Of::SourceAndObject, Of::User];

    /// Its name in configurations.
    pub(super) fn name(self) -> &'static str {
        match self {
            Of::Server => "Server",
            Of::Namespace => "Namespace",
            Of::User => "User",
            Of::SourceAndObject => "SourceAndObject",
        }
    }
}

/// How many events there may be of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub of: Of,
    pub rate: Rate,
    /// How many are remembered.
    pub kept: usize,
}

/// What the plugin is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits(pub(super) Vec<Limit>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    api_version: String,
    kind: String,
    #[serde(default)]
    limits: Vec<WrittenLimit>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct WrittenLimit {
    #[serde(rename = "type")]
    of: String,
    qps: i32,
    burst: i32,
    cache_size: i32,
}

impl WrittenLimit {
    fn read(&self, place: &str) -> Result<Limit, FieldError> {
        let positive = |field: &str, number: i32| match u32::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(FieldError::invalid(format!("{place}.{field}"), number, "must be positive")),
        };
        let of = Of::ALL.into_iter().find(|of| of.name() == self.of);
        let of = of.ok_or_else(|| {
            let supported = Of::ALL.map(Of::name);
            FieldError::not_supported(format!("{place}.type"), self.of.as_str(), &supported)
        })?;
        let burst = positive("burst", self.burst)?;
        let rate = Rate { per_s: positive("qps", self.qps)?, burst };
        let kept = match usize::try_from(self.cache_size) {
            // There is one alone, whatever is said.
            _ if of == Of::Server => 1,
            Ok(0) => KEPT,
            Ok(kept) => kept,
            Err(_) => {
                let place = format!("{place}.cacheSize");
                return Err(FieldError::invalid(place, self.cache_size, "must not be negative"));
            }
        };
        Ok(Limit { of, rate, kept })
    }
}

impl Limits {
    /// Reads what the plugin is told.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn parse(value: Value) -> Result<Self, String> {
        let read: Written = serde_json::from_value(value).map_err(|error| error.to_string())?;
        check_kind(&read.api_version, &read.kind, [(API_VERSION, KIND)])?;
        let each = read.limits.iter().enumerate().map(|(index, limit)| limit.read(&format!("limits[{index}]")));
        let limits = each.collect::<Result<Vec<Limit>, FieldError>>().map_err(|fault| fault.to_string())?;
        let limits = Self(limits);
        limits.check()?;
        Ok(limits)
    }

    /// Whether there is something to hold events to. The plugin is good for nothing else, so there has to be.
    ///
    /// # Errors
    /// There is not.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.0.is_empty() {
            return Err(FieldError::invalid("limits", Value::Null, "must not be empty").to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(limits: Value, want: Result<&[Limit], &str>) {
        let got = Limits::parse(json!({"apiVersion": API_VERSION, "kind": KIND, "limits": limits}));
        assert_eq!(got.as_ref().map(|limits| &*limits.0).map_err(String::as_str), want);
    }

    #[test]
    fn limits_have_to_be_good() {
        let rate = Rate { per_s: 5, burst: 10 };
        let limit = |of, kept| Limit { of, rate, kept };
        check(
            json!([{"type": "Server", "qps": 5, "burst": 10, "cacheSize": -1}, {"type": "User", "qps": 5, "burst": 10}]),
            Ok(&[limit(Of::Server, 1), limit(Of::User, KEPT)]),
        );
        check(
            json!([{"type": "SourceAndObject", "qps": 5, "burst": 10, "cacheSize": 7}]),
            Ok(&[limit(Of::SourceAndObject, 7)]),
        );
        check(json!([]), Err("limits: Invalid value: null: must not be empty"));
        check(
            json!([{"type": "Server", "qps": 5, "burst": 10}, {"type": "Namespace", "qps": 5}]),
            Err("limits[1].burst: Invalid value: 0: must be positive"),
        );
        check(
            json!([{"type": "Namespace", "qps": -1, "burst": 10}]),
            Err("limits[0].qps: Invalid value: -1: must be positive"),
        );
        check(
            json!([{"type": "User", "qps": 5, "burst": 10, "cacheSize": -1}]),
            Err("limits[0].cacheSize: Invalid value: -1: must not be negative"),
        );
        let unknown = json!([{"type": "Node", "qps": 5, "burst": 10}]);
        let got = Limits::parse(json!({"apiVersion": API_VERSION, "kind": KIND, "limits": unknown}));
        assert!(got.is_err_and(|why| why.starts_with("limits[0].type: Unsupported value: \"Node\"")));
    }

    #[test]
    fn it_is_a_configuration_of_this_plugin() {
        for (value, want) in [
            (
                json!({"apiVersion": "v1", "kind": "Configuration"}),
                "v1 Configuration is not eventratelimit.admission.k8s.io/v1alpha1 Configuration",
            ),
            (json!({"apiVersion": API_VERSION, "kind": KIND, "more": 1}), "unknown field `more`"),
            (json!({"apiVersion": API_VERSION, "kind": KIND, "limits": [{"rate": 1}]}), "unknown field `rate`"),
        ] {
            let got = Limits::parse(value.clone());
            assert!(got.as_ref().is_err_and(|why| why.contains(want)), "{value}: {got:?}");
        }
    }
}

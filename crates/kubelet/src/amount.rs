//! Resource quantities as the kubelet counts them: plain numbers of thousandths of a unit.

use std::collections::BTreeMap;

use carrack_types::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name, in thousandths of a unit (milli-CPU, millibytes).
pub type Amounts = BTreeMap<String, i128>;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// Reads a quantity into thousandths, rounding up. None when it is not one.
#[must_use]
pub fn milli(q: &Quantity) -> Option<i128> {
    quantity::Quantity::try_from(q).ok().map(up)
}

/// Reads a quantity into whole units, rounding up; 0 when it is not one.
#[must_use]
pub fn units(q: &Quantity) -> i64 {
    quantity::Quantity::try_from(q).map_or(0, quantity::Quantity::units)
}

/// Writes whole units.
#[must_use]
pub fn plain(units: u64) -> Quantity {
    Quantity(units.to_string())
}

/// Writes bytes in Ki, as node statuses do.
#[must_use]
pub fn kibibytes(bytes: u64) -> Quantity {
    Quantity(format!("{}Ki", bytes / 1024))
}

/// A list that was read already.
#[must_use]
pub fn of_list(list: &carrack_types::pod::ResourceList) -> Amounts {
    list.iter().map(|(k, q)| (k.clone(), up(*q))).collect()
}

fn up(q: quantity::Quantity) -> i128 {
    (q.nanos() + (NANOS_PER_MILLI - 1)).div_euclid(NANOS_PER_MILLI)
}

/// Reads a whole list; what is not a quantity counts as 0 (the API server lets none through).
#[must_use]
pub fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    list.into_iter().flatten().map(|(k, q)| (k.clone(), milli(q).unwrap_or(0))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_read() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("0.5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("1n", Some(1)),
            ("-1", Some(-1000)),
            ("", None),
            ("1Q", None),
        ] {
            assert_eq!(milli(&Quantity(text.into())), expected, "{text}");
        }
        assert_eq!(units(&Quantity("1500m".into())), 2);
    }
}

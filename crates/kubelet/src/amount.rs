//! Resource quantities: reading them into thousandths of a unit, and writing plain ones.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name, in thousandths of a unit (milli-CPU, millibytes).
pub type Amounts = BTreeMap<String, i128>;

/// Reads a quantity into thousandths, rounding up. None when it is not one.
///
/// The notation is that of <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.
#[must_use]
pub fn milli(q: &Quantity) -> Option<i128> {
    let text = q.0.trim();
    if text.len() > 64 {
        return None;
    }
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut digits: i128 = 0;
    for b in whole.bytes().chain(fraction.bytes()) {
        digits = digits.checked_mul(10)?.checked_add(i128::from(b - b'0'))?;
    }
    let ten = |n: i32| 10_i128.checked_pow(n.unsigned_abs());
    let two = |n: u32| Some(1_i128 << n);
    let (up, down): (i128, i128) = match suffix {
        "n" => (1, ten(9)?),
        "u" => (1, ten(6)?),
        "m" => (1, ten(3)?),
        "" => (1, 1),
        "k" => (ten(3)?, 1),
        "M" => (ten(6)?, 1),
        "G" => (ten(9)?, 1),
        "T" => (ten(12)?, 1),
        "P" => (ten(15)?, 1),
        "E" => (ten(18)?, 1),
        "Ki" => (two(10)?, 1),
        "Mi" => (two(20)?, 1),
        "Gi" => (two(30)?, 1),
        "Ti" => (two(40)?, 1),
        "Pi" => (two(50)?, 1),
        "Ei" => (two(60)?, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            if exponent.abs() > 24 {
                return None;
            }
            if exponent >= 0 { (ten(exponent)?, 1) } else { (1, ten(exponent)?) }
        }
    };
    let denominator = down.checked_mul(ten(i32::try_from(fraction.len()).ok()?)?)?;
    let numerator = digits.checked_mul(up)?.checked_mul(1000)?;
    let value = numerator.checked_add(denominator - 1)? / denominator;
    Some(if negative { -value } else { value })
}

/// Reads a quantity into whole units, rounding up; 0 when it is not one.
#[must_use]
pub fn units(q: &Quantity) -> i64 {
    milli(q).map_or(0, |m| i64::try_from((m + 999).div_euclid(1000)).unwrap_or(i64::MAX))
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
            (".5", Some(500)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("1k", Some(1_000_000)),
            ("1e3", Some(1_000_000)),
            ("1E", Some(1_000_000_000_000_000_000_000)),
            ("12E-1", Some(1200)),
            ("1n", Some(1)),
            ("-1", Some(-1000)),
            ("", None),
            ("Gi", None),
            ("1.2.3", None),
            ("1Q", None),
            ("1e99", None),
        ] {
            assert_eq!(milli(&Quantity(text.into())), expected, "{text}");
        }
        assert_eq!(units(&Quantity("1500m".into())), 2);
    }
}

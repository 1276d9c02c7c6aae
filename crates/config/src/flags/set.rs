//! Reads the text of a flag into its place, by the rules of the Go type behind it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::parse::{FlagError, Given};
use super::{IgnoredKind, KubeletFlags, Settings, Slot, VersionFlag};
use crate::KUBERNETES_VERSION;
use crate::duration::Duration;
use crate::labels::{key_fault, value_fault};
use crate::quantity::Quantity;
use crate::types::KubeletConfiguration;
use crate::types::managers::MemoryReservation;
use crate::types::node::Taint;
use crate::types::process::VModule;

/// Applies every flag, in the order given, so that the last one wins.
///
/// # Errors
/// The first value that cannot be used.
pub(crate) fn apply(given: &[Given], settings: &mut Settings) -> Result<(), FlagError> {
    let mut seen = BTreeSet::new();
    for Given { flag, value } in given {
        // The first use replaces a list or map, the next ones add to it.
        let first = seen.insert(flag.name);
        set(flag.slot, settings, value, first).map_err(|reason| FlagError::BadValue {
            flag: flag.name,
            value: value.clone(),
            reason,
        })?;
    }
    Ok(())
}

/// Applies the flags over a configuration that came from files. Feature gates are merged key by key.
///
/// # Errors
/// The first value that cannot be used.
pub(crate) fn apply_config(
    given: &[Given],
    config: KubeletConfiguration,
) -> Result<KubeletConfiguration, FlagError> {
    let from_files = config.process.feature_gates.clone();
    let mut settings = Settings {
        flags: KubeletFlags::default(),
        config,
    };
    apply(given, &mut settings)?;
    let gates = &mut settings.config.process.feature_gates;
    for (gate, value) in from_files {
        gates.entry(gate).or_insert(value);
    }
    Ok(settings.config)
}

fn set(slot: Slot, settings: &mut Settings, text: &str, first: bool) -> Result<(), String> {
    match slot {
        Slot::Bool(get) => *get(settings) = parse_bool(text)?,
        Slot::Int32(get) => *get(settings) = parse_int(text)?,
        Slot::Int64(get) => *get(settings) = parse_int(text)?,
        Slot::Text(get) => text.clone_into(get(settings)),
        Slot::Duration(get) => *get(settings) = parse_duration(text)?,
        Slot::Ip(get) => set_ip(get(settings), text)?,
        Slot::List(get) => extend(get(settings), split_csv(text)?, first),
        Slot::Pairs(get) => add_pairs(get(settings), text, first, &Pairs::EQUALS)?,
        Slot::OnePair(get) => add_pairs(get(settings), text, first, &Pairs::ONE)?,
        Slot::Thresholds(get) => add_pairs(get(settings), text, first, &Pairs::LESS)?,
        Slot::Labels(get) => add_pairs(get(settings), text, false, &Pairs::LABELS)?,
        Slot::Gates(get) => add_gates(get(settings), text, first)?,
        Slot::Headers(get) => add_headers(get(settings), text, first)?,
        Slot::Taints(get) => *get(settings) = parse_taints(text)?,
        Slot::ReservedMemory(get) => {
            extend(get(settings), parse_reserved_memory(text)?, first);
        }
        Slot::Verbosity(get) => *get(settings) = parse_level(text)?,
        Slot::VModule(get) => get(settings).extend(parse_vmodule(text)?),
        Slot::Quantity(get) => *get(settings) = Quantity::parse(text)?,
        Slot::Version(get) => *get(settings) = parse_version(text)?,
        Slot::Ignored(kind, _) => check_ignored(kind, text)?,
    }
    Ok(())
}

fn extend<T>(list: &mut Vec<T>, more: Vec<T>, first: bool) {
    if first {
        list.clear();
    }
    list.extend(more);
}

pub(super) fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("want true or false".to_owned()),
    }
}

/// A whole number in decimal, `0x` hexadecimal, `0o` or leading-zero octal, or `0b` binary; single underscores may
/// stand between digits and after such a prefix.
pub(super) fn parse_int<T: TryFrom<i128>>(text: &str) -> Result<T, String> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_str() {
        s if s.starts_with("0x") => (16, &s[2..]),
        s if s.starts_with("0b") => (2, &s[2..]),
        s if s.starts_with("0o") => (8, &s[2..]),
        s if s.len() > 1 && s.starts_with('0') => (8, &s[1..]),
        s => (10, s),
    };
    let well_spaced =
        !body.ends_with('_') && !body.contains("__") && (radix != 10 || !body.starts_with('_'));
    let body = body.replace('_', "");
    let signed = body.starts_with(['+', '-']);
    let number = i128::from_str_radix(&body, radix)
        .ok()
        .filter(|_| well_spaced && !signed)
        .ok_or_else(|| "want a whole number".to_owned())?;
    T::try_from(if negative { -number } else { number }).map_err(|_| "out of range".to_owned())
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    text.parse()
        .map_err(|error: crate::DurationError| error.to_string())
}

fn parse_level(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse::<i32>()
        .ok()
        .filter(|_| digits)
        .and_then(|level| u32::try_from(level).ok())
        .ok_or_else(|| "want a level from 0 upwards".to_owned())
}

fn set_ip(place: &mut String, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Ok(());
    }
    if !is_ip(text) {
        return Err(format!("{text:?} is not a valid IP address"));
    }
    text.clone_into(place);
    Ok(())
}

/// Leading zeros in IPv4 numbers are accepted as decimal, as they always were here.
pub(crate) fn is_ip(text: &str) -> bool {
    if text.contains(':') {
        return text.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 4
        && parts.iter().all(|part| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            digits
                && part.trim_start_matches('0').len() <= 3
                && part.parse::<u32>().is_ok_and(|n| n < 256)
        })
}

/// Splits one line of comma-separated values, which may stand in double quotes.
fn split_csv(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut values = Vec::new();
    let mut rest = text;
    loop {
        let (value, after) = match rest.strip_prefix('"') {
            Some(quoted) => split_quoted(quoted)?,
            None => match rest.split_once(',') {
                Some((value, after)) => (value.to_owned(), Some(after)),
                None => (rest.to_owned(), None),
            },
        };
        if !rest.starts_with('"') && value.contains('"') {
            return Err("a double quote stands inside an unquoted value".to_owned());
        }
        values.push(value);
        match after {
            Some(after) => rest = after,
            None => return Ok(values),
        }
    }
}

/// Reads up to the closing quote; a doubled quote is a quote.
fn split_quoted(text: &str) -> Result<(String, Option<&str>), String> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest
            .split_once('"')
            .ok_or_else(|| "a double quote is never closed".to_owned())?;
        value.push_str(part);
        if let Some(more) = after.strip_prefix('"') {
            value.push('"');
            rest = more;
        } else if after.is_empty() {
            return Ok((value, None));
        } else if let Some(next) = after.strip_prefix(',') {
            return Ok((value, Some(next)));
        } else {
            return Err("text follows a closing double quote".to_owned());
        }
    }
}

/// How pairs are written.
struct Pairs {
    separator: char,
    many: bool,
    value_required: bool,
}

impl Pairs {
    const EQUALS: Self = Self {
        separator: '=',
        many: true,
        value_required: true,
    };
    const ONE: Self = Self {
        separator: '=',
        many: false,
        value_required: true,
    };
    const LESS: Self = Self {
        separator: '<',
        many: true,
        value_required: true,
    };
    const LABELS: Self = Self {
        separator: '=',
        many: true,
        value_required: false,
    };
}

fn add_pairs(
    map: &mut BTreeMap<String, String>,
    text: &str,
    first: bool,
    form: &Pairs,
) -> Result<(), String> {
    if first {
        map.clear();
    }
    let parts: Vec<&str> = if form.many {
        text.split(',').filter(|part| !part.is_empty()).collect()
    } else {
        vec![text]
    };
    for part in parts {
        let (key, value) = match part.split_once(form.separator) {
            Some(pair) => pair,
            None if form.value_required => {
                return Err(format!(
                    "malformed pair {part:?}, want key{}value",
                    form.separator
                ));
            }
            None => (part, ""),
        };
        map.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(())
}

fn add_gates(map: &mut BTreeMap<String, bool>, text: &str, first: bool) -> Result<(), String> {
    if first {
        map.clear();
    }
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = part
            .split_once('=')
            .ok_or_else(|| format!("malformed pair {part:?}, want Gate=true or Gate=false"))?;
        let value = parse_bool(value.trim()).map_err(|reason| format!("{name}: {reason}"))?;
        map.insert(name.trim().to_owned(), value);
    }
    Ok(())
}

fn add_headers(
    map: &mut BTreeMap<String, Vec<String>>,
    text: &str,
    first: bool,
) -> Result<(), String> {
    if first {
        map.clear();
    }
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (name, value) = part
            .split_once(':')
            .ok_or_else(|| format!("malformed pair {part:?}, want name:value"))?;
        map.entry(name.trim().to_owned())
            .or_default()
            .push(value.trim().to_owned());
    }
    Ok(())
}

fn parse_taints(text: &str) -> Result<Vec<Taint>, String> {
    let mut taints: Vec<Taint> = Vec::new();
    if text.is_empty() {
        return Ok(taints);
    }
    for part in text.split(',') {
        let taint = parse_taint(part)?;
        if taints
            .iter()
            .any(|other| other.key == taint.key && other.effect == taint.effect)
        {
            return Err(format!(
                "duplicated taint {}:{}, a key may have an effect only once",
                taint.key, taint.effect
            ));
        }
        taints.push(taint);
    }
    Ok(taints)
}

fn parse_taint(text: &str) -> Result<Taint, String> {
    let invalid = |why: &str| format!("invalid taint {text:?}, {why}");
    let (pair, effect) = text
        .split_once(':')
        .ok_or_else(|| invalid("want key=value:effect"))?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if let Some(fault) = key_fault(key).or_else(|| value_fault(value)) {
        return Err(invalid(&fault));
    }
    if !is_taint_effect(effect) {
        return Err(invalid(
            "the effect must be NoSchedule, PreferNoSchedule or NoExecute",
        ));
    }
    Ok(Taint::new(key, value, effect))
}

pub(crate) fn is_taint_effect(effect: &str) -> bool {
    matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute")
}

fn parse_reserved_memory(text: &str) -> Result<Vec<MemoryReservation>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(';').map(parse_reservation).collect()
}

fn parse_reservation(text: &str) -> Result<MemoryReservation, String> {
    let form = || format!("malformed reservation {text:?}, want node:type=amount,...");
    let (node, limits) = text.split_once(':').ok_or_else(form)?;
    let numa_node = node
        .parse()
        .map_err(|_| format!("NUMA node {node:?} is not a whole number"))?;
    let mut reservation = MemoryReservation {
        numa_node,
        limits: BTreeMap::new(),
    };
    for limit in limits.split(',') {
        let (kind, amount) = limit.split_once('=').ok_or_else(form)?;
        if !is_memory_type(kind) {
            return Err(format!(
                "unknown memory type {kind:?}, want memory or hugepages-<size>"
            ));
        }
        reservation
            .limits
            .insert(kind.to_owned(), Quantity::parse(amount)?);
    }
    Ok(reservation)
}

pub(crate) fn is_memory_type(name: &str) -> bool {
    name == "memory" || name.starts_with("hugepages-")
}

fn parse_vmodule(text: &str) -> Result<Vec<VModule>, String> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(|part| {
            let form = || format!("{part:?} does not have the form pattern=level");
            let (pattern, level) = part.split_once('=').ok_or_else(form)?;
            if pattern.is_empty() || level.is_empty() || level.contains('=') {
                return Err(form());
            }
            Ok(VModule {
                file_pattern: pattern.to_owned(),
                verbosity: parse_level(level).map_err(|reason| format!("{part:?}: {reason}"))?,
            })
        })
        .collect()
}

fn parse_version(text: &str) -> Result<VersionFlag, String> {
    if text == "raw" {
        return Ok(VersionFlag::Raw);
    }
    if text.starts_with('v') {
        let own = text == KUBERNETES_VERSION;
        let vendored = text
            .strip_prefix(KUBERNETES_VERSION)
            .is_some_and(|rest| rest.starts_with(['-', '+']) && rest.len() > 1);
        return if own || vendored {
            Ok(VersionFlag::ReportAs(text.to_owned()))
        } else {
            Err(format!(
                "the version must be {KUBERNETES_VERSION} or a build of it"
            ))
        };
    }
    match parse_bool(text) {
        Ok(true) => Ok(VersionFlag::Short),
        Ok(false) => Ok(VersionFlag::No),
        Err(_) => Err("want true, false, raw or vX.Y.Z".to_owned()),
    }
}

fn check_ignored(kind: IgnoredKind, text: &str) -> Result<(), String> {
    match kind {
        IgnoredKind::Text => Ok(()),
        IgnoredKind::Bool => parse_bool(text).map(drop),
        IgnoredKind::Int => parse_int::<i64>(text).map(drop),
        IgnoredKind::Duration => parse_duration(text).map(drop),
    }
}

/// The present value as a flag would be written.
pub(super) fn show(slot: Slot, settings: &mut Settings) -> String {
    fn pairs<V: std::fmt::Display>(map: &BTreeMap<String, V>, separator: char) -> String {
        let pairs: Vec<_> = map
            .iter()
            .map(|(k, v)| format!("{k}{separator}{v}"))
            .collect();
        pairs.join(",")
    }
    match slot {
        Slot::Bool(get) => get(settings).to_string(),
        Slot::Int32(get) => get(settings).to_string(),
        Slot::Int64(get) => get(settings).to_string(),
        Slot::Text(get) | Slot::Ip(get) => get(settings).clone(),
        Slot::Duration(get) => get(settings).to_string(),
        Slot::List(get) => get(settings).join(","),
        Slot::Pairs(get) | Slot::OnePair(get) | Slot::Labels(get) => pairs(get(settings), '='),
        Slot::Thresholds(get) => pairs(get(settings), '<'),
        Slot::Gates(get) => pairs(get(settings), '='),
        Slot::Verbosity(get) => get(settings).to_string(),
        Slot::Quantity(get) => get(settings).as_str().to_owned(),
        Slot::Version(_) => "false".to_owned(),
        Slot::Ignored(_, default) => default.to_owned(),
        // Nothing is set in these by default.
        Slot::Headers(_) | Slot::Taints(_) | Slot::ReservedMemory(_) | Slot::VModule(_) => {
            String::new()
        }
    }
}

//! From samples to the bytes of a profile. Pure.

use std::collections::BTreeMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

use crate::proto::{Location, Profile, Sample, ValueType};
use crate::{Mapping, PERIOD, ProfileError, Samples, proto};

/// When samples were taken, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// Since the epoch.
    pub at_nanos: i64,
    pub nanos: i64,
}

/// The profile as `pprof` reads it, packed.
pub fn encode(
    samples: &Samples,
    mappings: &[Mapping],
    taken: Taken,
) -> Result<Vec<u8>, ProfileError> {
    let profile = profile(samples, mappings, taken).encode_to_vec();
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = packer.write_all(&profile).and_then(|()| packer.finish());
    packed.map_err(ProfileError::Packing)
}

/// Texts by their numbers.
struct Texts(Vec<String>);

impl Texts {
    fn number(&mut self, text: &str) -> i64 {
        let known = self.0.iter().position(|known| known == text);
        let number = known.unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        });
        number as i64
    }

    fn value(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType {
            kind: self.number(kind),
            unit: self.number(unit),
        }
    }
}

fn profile(samples: &Samples, mappings: &[Mapping], taken: Taken) -> Profile {
    let mut texts = Texts(vec![String::new()]);
    let period = PERIOD.as_nanos() as i64;
    let time = texts.value("cpu", "nanoseconds");
    let mut profile = Profile {
        sample_type: vec![texts.value("samples", "count"), time],
        period_type: Some(time),
        period,
        time_nanos: taken.at_nanos,
        duration_nanos: taken.nanos,
        ..Profile::default()
    };
    for (mapping, id) in mappings.iter().zip(1..) {
        profile.mapping.push(proto::Mapping {
            id,
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.offset,
            filename: texts.number(&mapping.file),
            build_id: texts.number(&mapping.build_id),
        });
    }
    let mut counts: BTreeMap<&[usize], i64> = BTreeMap::new();
    for stack in &samples.stacks {
        *counts.entry(stack).or_default() += 1;
    }
    let mut places: BTreeMap<usize, u64> = BTreeMap::new();
    for (stack, count) in counts {
        let ids = stack.iter().map(|address| {
            let next = places.len() as u64 + 1;
            *places.entry(*address).or_insert(next)
        });
        profile.sample.push(Sample {
            location_id: ids.collect(),
            value: vec![count, count.saturating_mul(period)],
        });
    }
    profile.location = places
        .into_iter()
        .map(|(address, id)| location(id, address as u64, &profile.mapping))
        .collect();
    if samples.lost > 0 {
        let lost = format!("{} samples were lost", samples.lost);
        profile.comment.push(texts.number(&lost));
    }
    profile.string_table = texts.0;
    profile
}

fn location(id: u64, address: u64, mappings: &[proto::Mapping]) -> Location {
    let holds = |m: &&proto::Mapping| (m.memory_start..m.memory_limit).contains(&address);
    Location {
        id,
        mapping_id: mappings.iter().find(holds).map_or(0, |m| m.id),
        address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_sample_and_places_are_told_once() {
        let samples = Samples {
            stacks: vec![vec![0x105, 0x2], vec![0x106], vec![0x105, 0x2]],
            lost: 3,
        };
        let mappings = [Mapping {
            start: 0x100,
            end: 0x200,
            offset: 0x10,
            file: "/bin/agent".into(),
            build_id: "abcd".into(),
        }];
        let taken = Taken {
            at_nanos: 5,
            nanos: 7,
        };
        let packed = encode(&samples, &mappings, taken).unwrap();
        let profile = Profile::unpack(&packed).unwrap();
        let values: Vec<_> = profile.sample.iter().map(|s| s.value.clone()).collect();
        assert_eq!(values, [[2, 20_000_000], [1, 10_000_000]]);
        let address = |id: u64| {
            let found = profile.location.iter().find(|l| l.id == id).unwrap();
            (found.address, found.mapping_id)
        };
        let first: Vec<_> = profile.sample[0]
            .location_id
            .iter()
            .copied()
            .map(address)
            .collect();
        assert_eq!(first, [(0x105, 1), (0x2, 0)]);
        assert_eq!(profile.location.len(), 3);
        let mapping = &profile.mapping[0];
        assert_eq!(profile.text(mapping.filename), "/bin/agent");
        assert_eq!(profile.text(mapping.build_id), "abcd");
        let types: Vec<_> = profile
            .sample_type
            .iter()
            .map(|t| (profile.text(t.kind), profile.text(t.unit)))
            .collect();
        assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
        assert_eq!(profile.text(profile.comment[0]), "3 samples were lost");
        assert_eq!((profile.time_nanos, profile.duration_nanos), (5, 7));
        assert_eq!(profile.text(0), "");
    }
}

//! Ids for pods that have users of their own: each pod has a range of the node's ids to itself, on which
//! those in its containers are mapped. The records are those of a kubelet, which finds them again.

use serde::{Deserialize, Serialize};

/// What a pod has unless the configuration says otherwise, and what it says must be a multiple of.
pub const UNIT: u32 = 65_536;

/// The ids that may be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    first: u32,
    length: u64,
    per_pod: u32,
}

impl Default for IdSpace {
    /// All ids but those of the node's own users.
    fn default() -> Self {
        Self {
            first: UNIT,
            length: (1 << 32) - u64::from(UNIT),
            per_pod: UNIT,
        }
    }
}

impl IdSpace {
    /// `given` is a range kept for pods; without it there are all ids but the first `per_pod`. The
    /// node must be able to give every one of its pods a range.
    pub fn new(per_pod: u32, given: Option<(u32, u32)>, max_pods: u32) -> Result<Self, String> {
        if per_pod == 0 || !per_pod.is_multiple_of(UNIT) {
            return Err(format!(
                "kubelet user namespace length {per_pod} is not a multiple of {UNIT}"
            ));
        }
        let (first, length) = match given {
            Some((first, length)) => (first, u64::from(length)),
            None => (per_pod, (1 << 32) - u64::from(per_pod)),
        };
        let each = u64::from(per_pod);
        if !first.is_multiple_of(per_pod) {
            return Err(format!(
                "kubelet user assigned ID {first} is not a multiple of {per_pod}"
            ));
        }
        if first < per_pod {
            return Err(format!(
                "kubelet user assigned ID {first} must be greater or equal to {per_pod}"
            ));
        }
        if !length.is_multiple_of(each) {
            return Err(format!(
                "kubelet user assigned IDs length {length} is not a multiple of {per_pod}"
            ));
        }
        if length / each < u64::from(max_pods) {
            return Err(format!(
                "kubelet user assigned IDs are not enough to support {max_pods} pods"
            ));
        }
        Ok(Self {
            first,
            length,
            per_pod,
        })
    }

    /// The first range that none of the pods has.
    pub fn free(&self, taken: &[IdMapping]) -> Result<IdMapping, String> {
        let end = u64::from(self.first) + self.length;
        let step = usize::try_from(self.per_pod).unwrap_or(usize::MAX);
        let mut starts = (u64::from(self.first)..end).step_by(step);
        let is_free = |start: &u64| {
            let last = start + u64::from(self.per_pod);
            taken.iter().all(|t| {
                let (from, to) = (
                    u64::from(t.host_id),
                    u64::from(t.host_id) + u64::from(t.length),
                );
                to <= *start || last <= from
            })
        };
        let start = starts.find(is_free).and_then(|s| u32::try_from(s).ok());
        let start =
            start.ok_or("could not find an empty slot to allocate a user namespace".to_owned())?;
        Ok(IdMapping {
            host_id: start,
            container_id: 0,
            length: self.per_pod,
        })
    }
}

/// Ids of containers on ids of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    #[serde(rename = "hostId")]
    pub host_id: u32,
    #[serde(rename = "containerId")]
    pub container_id: u32,
    pub length: u32,
}

/// The file `userns` in a pod's directory.
#[derive(Serialize, Deserialize)]
struct Record {
    #[serde(rename = "uidMappings")]
    uids: Vec<IdMapping>,
    #[serde(rename = "gidMappings")]
    gids: Vec<IdMapping>,
}

pub fn encode(mapping: IdMapping) -> Vec<u8> {
    let record = Record {
        uids: vec![mapping],
        gids: vec![mapping],
    };
    serde_json::to_vec(&record).unwrap_or_default()
}

/// Users and groups are mapped alike, with root among them; what is not so was not written for a pod.
pub fn decode(bytes: &[u8]) -> Result<IdMapping, String> {
    let record: Record = serde_json::from_slice(bytes)
        .map_err(|e| format!("invalid user namespace mappings file: {e}"))?;
    let invalid = |why: &str| Err(format!("invalid user namespace configuration: {why}"));
    let [mapping] = record.uids[..] else {
        return invalid("no more than one mapping allowed.");
    };
    if record.gids != record.uids {
        return invalid("GID and UID mapping should be identical");
    }
    if mapping.container_id != 0 {
        return invalid("UID 0 must be mapped");
    }
    Ok(mapping)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host_id: u32, length: u32) -> IdMapping {
        IdMapping {
            host_id,
            container_id: 0,
            length,
        }
    }

    #[test]
    fn ranges_lie_apart() {
        let space = IdSpace::default();
        let mut taken = Vec::new();
        for n in 1..=3 {
            let range = space.free(&taken).unwrap();
            assert_eq!(range, at(n * UNIT, UNIT));
            taken.push(range);
        }
        taken.remove(1);
        assert_eq!(space.free(&taken).unwrap(), at(2 * UNIT, UNIT));
        // One of another length, from before the configuration changed.
        assert_eq!(
            space.free(&[at(UNIT, 3 * UNIT)]).unwrap(),
            at(4 * UNIT, UNIT)
        );
    }

    #[test]
    fn a_space_that_is_full() {
        let space = IdSpace::new(UNIT, Some((UNIT, 2 * UNIT)), 2).unwrap();
        let taken = [at(UNIT, UNIT), at(2 * UNIT, UNIT)];
        assert_eq!(space.free(&taken[..1]).unwrap(), taken[1]);
        assert_eq!(
            space.free(&taken).unwrap_err(),
            "could not find an empty slot to allocate a user namespace"
        );
        let all = IdSpace::default();
        let last = at(u32::MAX - UNIT + 1, UNIT);
        assert_eq!(all.free(&[at(0, u32::MAX - UNIT + 1)]).unwrap(), last);
    }

    #[test]
    fn spaces_that_do_not_fit() {
        let cases = [
            (
                100,
                None,
                "kubelet user namespace length 100 is not a multiple of 65536",
            ),
            (
                0,
                None,
                "kubelet user namespace length 0 is not a multiple of 65536",
            ),
            (
                UNIT,
                Some((UNIT + 1, UNIT)),
                "kubelet user assigned ID 65537 is not a multiple of 65536",
            ),
            (
                UNIT,
                Some((0, UNIT)),
                "kubelet user assigned ID 0 must be greater or equal to 65536",
            ),
            (
                UNIT,
                Some((UNIT, 1)),
                "kubelet user assigned IDs length 1 is not a multiple of 65536",
            ),
            (
                UNIT,
                Some((UNIT, UNIT)),
                "kubelet user assigned IDs are not enough to support 110 pods",
            ),
        ];
        for (per_pod, given, why) in cases {
            assert_eq!(IdSpace::new(per_pod, given, 110).unwrap_err(), why);
        }
        assert_eq!(IdSpace::new(UNIT, None, 110), Ok(IdSpace::default()));
    }

    #[test]
    fn records_of_a_kubelet() {
        let text = r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#;
        assert_eq!(encode(at(131_072, UNIT)), text.as_bytes());
        assert_eq!(decode(text.as_bytes()), Ok(at(131_072, UNIT)));
        for (text, why) in [
            ("{", "invalid user namespace mappings file: "),
            (
                r#"{"uidMappings":[],"gidMappings":[]}"#,
                "invalid user namespace configuration: no more than one mapping allowed.",
            ),
            (
                r#"{"uidMappings":[{"hostId":1,"containerId":0,"length":1}],"gidMappings":[]}"#,
                "invalid user namespace configuration: GID and UID mapping should be identical",
            ),
            (
                r#"{"uidMappings":[{"hostId":1,"containerId":1,"length":1}],"gidMappings":[{"hostId":1,"containerId":1,"length":1}]}"#,
                "invalid user namespace configuration: UID 0 must be mapped",
            ),
        ] {
            let got = decode(text.as_bytes()).unwrap_err();
            assert!(got.starts_with(why), "{got}");
        }
    }
}

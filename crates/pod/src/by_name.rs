//! A few values, each with a name.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Written like a map, and as large as what it holds: a map has room for eleven, and most pods have one container.
#[derive(Clone, Debug, PartialEq)]
pub struct ByName<T> {
    /// In the order of the names, each of which is there once.
    values: Box<[(String, T)]>,
}

impl<T> ByName<T> {
    pub fn get(&self, name: &str) -> Option<&T> {
        let found = self.values.binary_search_by(|(n, _)| n.as_str().cmp(name));
        found.ok().map(|at| &self.values[at].1)
    }

    /// In the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.values.iter().map(|(name, value)| (name, value))
    }
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self {
            values: Box::default(),
        }
    }
}

/// Where a name comes twice, the later one counts.
impl<T> FromIterator<(String, T)> for ByName<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(values: I) -> Self {
        let ordered: BTreeMap<String, T> = values.into_iter().collect();
        Self {
            values: ordered.into_iter().collect(),
        }
    }
}

impl<T> IntoIterator for ByName<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<(String, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_vec().into_iter()
    }
}

#[cfg(test)]
impl<T> std::ops::Index<&str> for ByName<T> {
    type Output = T;

    fn index(&self, name: &str) -> &T {
        self.get(name).unwrap()
    }
}

impl<T: Serialize> Serialize for ByName<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for ByName<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, T>::deserialize(deserializer)?;
        Ok(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(values: &[(&str, u32)]) -> ByName<u32> {
        values.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn it_is_found_and_written_as_a_map_would_be() {
        let cases: [&[(&str, u32)]; 4] = [
            &[],
            &[("a", 1)],
            &[("b", 2), ("a", 1), ("c", 3)],
            &[("b", 2), ("a", 1), ("b", 3)],
        ];
        for values in cases {
            let list = some(values);
            let map: BTreeMap<String, u32> = list.clone().into_iter().collect();
            let expected: BTreeMap<String, u32> =
                values.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
            assert_eq!(map, expected);
            assert!(list.iter().eq(map.iter()));
            for name in ["", "a", "b", "bb", "c", "d"] {
                assert_eq!(list.get(name), map.get(name), "{name} of {map:?}");
            }
            let text = serde_json::to_string(&list).unwrap();
            assert_eq!(text, serde_json::to_string(&map).unwrap());
            assert_eq!(serde_json::from_str::<ByName<u32>>(&text).unwrap(), list);
        }
    }
}

//! Image references: the grammar of the distribution project, and the normal form in which
//! credentials are looked up.
//!
//! ```text
//! reference  := name [ ":" tag ] [ "@" digest ]
//! name       := [ domain "/" ] path
//! domain     := host [ ":" port ]
//! path       := part { "/" part }
//! ```

/// Longest path of a repository.
const MAX_PATH: usize = 255;
const MAX_TAG: usize = 128;
const MIN_DIGEST_HEX: usize = 32;
const DEFAULT_DOMAIN: &str = "docker.io";
const LEGACY_DOMAIN: &str = "index.docker.io";
const OFFICIAL: &str = "library/";
pub const DEFAULT_TAG: &str = "latest";

/// Why a text is no image reference, in the words users know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("invalid reference format")]
    Format,
    #[error("repository name must have at least one component")]
    Empty,
    #[error("repository name must be lowercase")]
    Uppercase,
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    UppercasePath(String),
    #[error("repository name must not be more than {MAX_PATH} characters")]
    TooLong,
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    #[error("invalid checksum digest format")]
    DigestFormat,
    #[error("invalid checksum digest length")]
    DigestLength,
    #[error("unsupported digest algorithm")]
    DigestAlgorithm,
}

/// A reference in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// Registry and repository, as written.
    pub name: &'a str,
    pub tag: Option<&'a str>,
    pub digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    /// Reads a reference as it is written; a registry is not required.
    pub fn parse(text: &'a str) -> Result<Self, ReferenceError> {
        let Some((reference, path)) = Self::split(text) else {
            let lower = text.to_lowercase();
            return Err(match text {
                "" => ReferenceError::Empty,
                _ if Reference::split(&lower).is_some() => ReferenceError::Uppercase,
                _ => ReferenceError::Format,
            });
        };
        if path > MAX_PATH {
            return Err(ReferenceError::TooLong);
        }
        if let Some(digest) = reference.digest {
            check_digest(digest)?;
        }
        Ok(reference)
    }

    /// The parts and the length of the path, if the text follows the grammar.
    fn split(text: &'a str) -> Option<(Self, usize)> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to a port.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        let path = path_of(name)?;
        let valid = tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
        valid.then_some((Self { name, tag, digest }, path.len()))
    }
}

/// What a name leaves when its registry is taken off.
fn path_of(name: &str) -> Option<&str> {
    let parts = |path: &str| path.split('/').all(is_path_part);
    if let Some((first, path)) = name.split_once('/')
        && is_domain(first)
        && parts(path)
    {
        return Some(path);
    }
    parts(name).then_some(name)
}

/// A reference with its registry and repository written out: `busybox` is
/// `docker.io/library/busybox`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normal {
    /// What credentials are looked up by.
    pub repository: String,
    pub tag: Option<String>,
    pub digest: Option<String>,
}

impl Normal {
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.len() == 64 && text.bytes().all(is_lower_hex) {
            return Err(ReferenceError::Identifier(text.to_owned()));
        }
        let (domain, remainder) = split_domain(text);
        let remote = remainder.split(':').next().unwrap_or_default();
        if remote.to_lowercase() != remote {
            return Err(ReferenceError::UppercasePath(remote.to_owned()));
        }
        let full = format!("{domain}/{remainder}");
        let parsed = Reference::parse(&full)?;
        Ok(Self {
            repository: parsed.name.to_owned(),
            tag: parsed.tag.map(str::to_owned),
            digest: parsed.digest.map(str::to_owned),
        })
    }
}

/// The first part is a registry if it looks like a host.
fn split_domain(text: &str) -> (&str, String) {
    let (domain, remainder) = match text.split_once('/') {
        None => return (DEFAULT_DOMAIN, format!("{OFFICIAL}{text}")),
        Some((LEGACY_DOMAIN, rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest))
            if first == "localhost"
                || first.contains(['.', ':'])
                || first.to_lowercase() != first =>
        {
            (first, rest)
        }
        Some(_) => (DEFAULT_DOMAIN, text),
    };
    match domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        true => (domain, format!("{OFFICIAL}{remainder}")),
        false => (domain, remainder.to_owned()),
    }
}

/// The image with `:latest` where it has neither tag nor digest; the error says why it is no
/// image name at all. The name is not written out: what a short name stands for is the runtime's to know.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let normal = normal(image)?;
    Ok(match (normal.tag, normal.digest) {
        (None, None) => format!("{image}:{DEFAULT_TAG}"),
        _ => image.to_owned(),
    })
}

/// What credentials for the image are looked up by.
pub fn repository(image: &str) -> Result<String, String> {
    Ok(normal(image)?.repository)
}

/// The image as runtimes list it: written out, with its tag, or with its digest alone.
pub fn listed_name(image: &str) -> Option<String> {
    let name = Normal::parse(image).ok()?;
    Some(match (name.digest, name.tag) {
        (Some(digest), _) => format!("{}@{digest}", name.repository),
        (None, tag) => format!(
            "{}:{}",
            name.repository,
            tag.as_deref().unwrap_or(DEFAULT_TAG)
        ),
    })
}

fn normal(image: &str) -> Result<Normal, String> {
    Normal::parse(image).map_err(|why| format!("couldn't parse image name {image:?}: {why}"))
}

/// The image as written, without tag and digest.
pub fn bare(image: &str) -> Result<&str, ReferenceError> {
    Reference::parse(image).map(|reference| reference.name)
}

fn is_lower_hex(b: u8) -> bool {
    b.is_ascii_digit() || (b'a'..=b'f').contains(&b)
}

fn is_domain(domain: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = domain.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else {
            return false;
        };
        let hex = |b: u8| b.is_ascii_hexdigit() || b == b':';
        return !address.is_empty()
            && address.bytes().all(hex)
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match domain.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (domain, None),
    };
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(label) && port.is_none_or(is_port)
}

/// Lower-case letters and digits, parted by `.`, `_`, `__` or dashes.
fn is_path_part(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = |b: Option<&u8>| b.is_some_and(|b| word(*b));
    if !ends(bytes.first()) || !ends(bytes.last()) {
        return false;
    }
    bytes.split(|b| word(*b)).all(|separator| {
        matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= MAX_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else {
        return false;
    };
    let word = |w: &str| {
        w.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
            && w.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(word)
        && hex.len() >= MIN_DIGEST_HEX
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What the grammar leaves open: that somebody knows the algorithm, and how long its sums are.
fn check_digest(digest: &str) -> Result<(), ReferenceError> {
    let (algorithm, hex) = digest.split_once(':').unwrap_or((digest, ""));
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        other if other.bytes().any(|b| b.is_ascii_uppercase()) => {
            return Err(ReferenceError::DigestFormat);
        }
        _ => return Err(ReferenceError::DigestAlgorithm),
    };
    match () {
        () if hex.len() != length => Err(ReferenceError::DigestLength),
        () if !hex.bytes().all(is_lower_hex) => Err(ReferenceError::DigestFormat),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests;

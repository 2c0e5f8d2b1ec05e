//! Why an append failed, in words.

/// Why the tries of one append failed. The first says what is wrong; the last may only say that
/// time was up.
#[derive(Default)]
pub(crate) struct Causes {
    first: Option<String>,
    last: Option<String>,
}

impl Causes {
    /// One more try failed.
    pub fn add(&mut self, cause: String) {
        if self.first.is_none() {
            self.first = Some(cause);
        } else {
            self.last = (self.first.as_ref() != Some(&cause)).then_some(cause);
        }
    }

    /// Both in words.
    pub fn text(self) -> String {
        match (self.first, self.last) {
            (Some(first), Some(last)) => format!("{first}; at the last try: {last}"),
            (first, _) => first.unwrap_or_default(),
        }
    }
}

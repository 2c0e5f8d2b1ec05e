//! What others make of a catalog's content, kept with it: system tables above all, which drivers
//! ask for again and again.
//!
//! # Invariants
//! - A snapshot does not change once it is shared: what was made of it stays right as long as it is
//!   there.
//! - A copy, which somebody makes to change it, begins with nothing.
//!
//! # On failure
//! Nothing fails: what does not fit is made anew each time.
//!
//! # Limits
//! 64 MiB for each snapshot; beyond, nothing more is kept.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes that are kept with one snapshot.
const MOST_BYTES: usize = 64 << 20;

type Kept = (Arc<dyn Any + Send + Sync>, usize);

/// Values by name.
#[derive(Default)]
pub struct Derived(Mutex<BTreeMap<&'static str, Kept>>);

impl Derived {
    /// What is kept under `name`, if it is of this type.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self, name: &str) -> Option<Arc<T>> {
        let (value, _) = self.0.lock().get(name).cloned()?;
        value.downcast().ok()
    }

    /// Keeps `value` of `bytes` bytes under `name`, in the place of what was there.
    pub fn keep<T: Any + Send + Sync>(&self, name: &'static str, value: Arc<T>, bytes: usize) {
        let mut kept = self.0.lock();
        let others = kept.iter().filter(|(known, _)| **known != name);
        let held: usize = others.map(|(_, (_, bytes))| bytes).sum();
        if held.saturating_add(bytes) <= MOST_BYTES {
            kept.insert(name, (value, bytes));
        } else {
            kept.remove(name);
        }
    }
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Derived")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_begin_with_nothing_and_large_values_are_not_kept() {
        let derived = Derived::default();
        derived.keep("a", Arc::new(1_u32), 10);
        derived.keep("b", Arc::new(2_u32), MOST_BYTES);
        assert_eq!(derived.get::<u32>("a").as_deref(), Some(&1));
        assert_eq!(derived.get::<u32>("b"), None);
        assert_eq!(derived.get::<u64>("a"), None, "of another type");
        derived.keep("a", Arc::new(3_u32), MOST_BYTES);
        assert_eq!(derived.get::<u32>("a").as_deref(), Some(&3), "in its own place");
        assert_eq!(derived.clone().get::<u32>("a"), None);
    }
}

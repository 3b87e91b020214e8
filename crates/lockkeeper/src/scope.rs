//! The scope of a request: one name, or several, each with its mode.

use lockkeeper_core::{Mode, Name};

/// What [`Locks::request`](crate::Locks::request) takes: a name, or an array, `Vec` or slice of
/// names.
///
/// A name may come with its own mode, as in `[("accounts", Mode::Shared), ("orders",
/// Mode::Exclusive)]`; one that comes alone has the mode of the request. A name that stands twice
/// counts once, exclusive if either asks for that. A name is kept as it is given until the request
/// is made, borrowed or not.
///
/// ```
/// # use lockkeeper::{Locks, Mode};
/// let locks = Locks::new();
/// let lock = locks.try_acquire([("stock", Mode::Shared), ("orders", Mode::Exclusive)])?.unwrap();
/// let names: Vec<_> = lock.scope().into_iter().map(|(name, _)| name.to_string()).collect();
/// assert_eq!(names, ["orders", "stock"]);
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub trait IntoScope: sealed::Scoped + Unpin {}

impl<T: sealed::Scoped + Unpin> IntoScope for T {}

pub(crate) mod sealed {
    use super::{Mode, Name};

    pub trait Scoped {
        /// The name, with its own mode or else `mode`, if this is a single one.
        fn one(&self, mode: Mode) -> Option<(&[u8], Mode)>;

        /// The names, each with its own mode or else `mode`.
        fn all(&self, mode: Mode) -> Vec<(&[u8], Mode)>;
    }

    /// One name, with its own mode or without.
    pub trait Item {
        fn bytes(&self) -> &[u8];

        fn mode(&self) -> Option<Mode> {
            None
        }

        #[inline]
        fn pair(&self, mode: Mode) -> (&[u8], Mode) {
            (self.bytes(), self.mode().unwrap_or(mode))
        }
    }

    impl<I: Item> Scoped for I {
        #[inline]
        fn one(&self, mode: Mode) -> Option<(&[u8], Mode)> {
            Some(self.pair(mode))
        }

        fn all(&self, mode: Mode) -> Vec<(&[u8], Mode)> {
            vec![self.pair(mode)]
        }
    }

    /// Sorts, and lets a name that stands twice count once, exclusive if either asks for that.
    fn sorted<I: Item>(names: &[I], mode: Mode) -> Vec<(&[u8], Mode)> {
        let mut names: Vec<_> = names.iter().map(|name| name.pair(mode)).collect();
        names.sort_by(|a, b| a.0.cmp(b.0));
        names.dedup_by(|again, kept| {
            let same = again.0 == kept.0;
            if same && again.1 == Mode::Exclusive {
                kept.1 = Mode::Exclusive;
            }
            same
        });
        names
    }

    macro_rules! collections {
        ($($collection:ty $(, $n:ident)?;)*) => {$(
            impl<I: Item $(, const $n: usize)?> Scoped for $collection {
                fn one(&self, _: Mode) -> Option<(&[u8], Mode)> {
                    None
                }

                fn all(&self, mode: Mode) -> Vec<(&[u8], Mode)> {
                    sorted(&self[..], mode)
                }
            }
        )*};
    }
    collections! {
        [I; N], N;
        &[I; N], N;
        &[I];
        Vec<I>;
        &Vec<I>;
    }

    macro_rules! names {
        ($($name:ty),*) => {$(
            impl Item for $name {
                #[inline]
                fn bytes(&self) -> &[u8] {
                    self.as_bytes()
                }
            }
        )*};
    }
    names!(&str, String, &String, Name, &Name);

    impl<N: Item> Item for (N, Mode) {
        #[inline]
        fn bytes(&self) -> &[u8] {
            self.0.bytes()
        }

        #[inline]
        fn mode(&self) -> Option<Mode> {
            Some(self.1)
        }
    }
}

//! JavaScript strings as names, and back.

use lockkeeper_core::{Mode, Name};
use napi::{
    Either, Env, Error, JsString, JsValue, Result, Status,
    bindgen_prelude::{Utf16String, sys},
};
use std::{mem::MaybeUninit, ptr, slice};

/// Names of up to so many code units are read without allocation.
const SHORT: usize = 128;

/// Hands the bytes of the name that `value` spells to `use_name`.
///
/// # Safety
///
/// `env` and `value` are those of the running call.
pub(crate) unsafe fn with_name<R>(
    env: sys::napi_env,
    value: sys::napi_value,
    use_name: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let mut units = [const { MaybeUninit::<u16>::uninit() }; SHORT];
    let mut len = 0;
    // SAFETY: the buffer has room for SHORT units, the closing zero included.
    let status = unsafe {
        sys::napi_get_value_string_utf16(env, value, units.as_mut_ptr().cast(), SHORT, &raw mut len)
    };
    if status != sys::Status::napi_ok {
        return Err(Error::new(Status::from(status), "a name is a string"));
    }
    if len + 1 < SHORT {
        // SAFETY: so many were written.
        let units = unsafe { slice::from_raw_parts(units.as_ptr().cast::<u16>(), len) };
        let mut bytes = [0_u8; SHORT];
        let mut seen = 0;
        for (byte, unit) in bytes.iter_mut().zip(units) {
            *byte = unit.to_le_bytes()[0];
            seen |= unit;
        }
        return Ok(match seen < 0x80 {
            true => use_name(&bytes[..len]),
            false => use_name(Name::from_utf16(units.iter().copied()).as_bytes()),
        });
    }
    // SAFETY: as above; a null buffer asks for the length.
    unsafe { sys::napi_get_value_string_utf16(env, value, ptr::null_mut(), 0, &raw mut len) };
    let mut units = vec![0_u16; len + 1];
    // SAFETY: as above.
    unsafe {
        sys::napi_get_value_string_utf16(env, value, units.as_mut_ptr(), units.len(), &raw mut len);
    }
    Ok(use_name(Name::from_utf16(units[..len].iter().copied()).as_bytes()))
}

/// The name that a string spells.
pub(crate) fn name(env: &Env, string: &JsString<'_>) -> Result<Name> {
    // SAFETY: both come from the running call.
    unsafe { with_name(env.raw(), string.raw(), |name| Name::from(name)) }
}

/// The names of a scope, each with its mode.
pub(crate) fn scope(env: &Env, names: &[JsString<'_>], shared: &[bool]) -> Result<Vec<(Name, Mode)>> {
    let mode = |&shared: &bool| if shared { Mode::Shared } else { Mode::Exclusive };
    names.iter().zip(shared).map(|(string, shared)| Ok((name(env, string)?, mode(shared)))).collect()
}

/// Text on its way to JavaScript: one byte a character if that is enough.
#[derive(Default)]
pub(crate) struct Text {
    units: Vec<u16>,
    wide: bool,
}

impl Text {
    /// Appends a name. Returns how many code units it has.
    pub(crate) fn push(&mut self, name: &Name) -> usize {
        let before = self.units.len();
        match name.as_bytes() {
            bytes if bytes.is_ascii() => self.units.extend(bytes.iter().copied().map(u16::from)),
            _ => {
                self.units.extend(name.to_utf16());
                self.wide = true;
            }
        }
        self.units.len() - before
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.units.append(&mut other.units);
        self.wide |= other.wide;
    }

    pub(crate) fn into_js(self) -> Either<String, Utf16String> {
        match self.wide {
            true => Either::B(Utf16String::from(self.units)),
            false => Either::A(self.units.into_iter().map(|unit| unit.to_le_bytes()[0] as char).collect()),
        }
    }
}

/// One name as a JavaScript string.
pub(crate) fn to_js(name: &Name) -> Either<String, Utf16String> {
    let mut text = Text::default();
    text.push(name);
    text.into_js()
}

"""Credentials by MUNGE: four calls of libmunge through ctypes. Standard library only, since the hooks use it too.

A context is made for every call, so that threads share nothing. libmunge's own deadline for its socket is 2 s a try.
Other threads run only while munged is waited for: each of the small calls around it would hand the interpreter to whoever
waits, and back.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache

from sentinel.errors import Denied, Unavailable
from sentinel.ports import Signed

# Options of a context in munge.h.
_OPT_CIPHER, _OPT_UID_RESTRICTION, _CIPHER_AES256 = 0, 9, 5
_OPT_TTL, _OPT_ADDR4, _OPT_ENCODE_TIME, _OPT_SOCKET = 4, 5, 6, 8
_DEFAULT_TTL_S = 300  # munged's default, where the credential does not say it
_OK, _UNAUTHORIZED = 0, 18
# Codes of munge.h that say something about the credential rather than about munged.
_BAD_CREDENTIAL = frozenset({2, 3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18})


def _loaded(kind: type[ctypes.CDLL]) -> ctypes.CDLL:
    try:
        return kind("libmunge.so.2")
    except OSError as error:
        raise Unavailable(
            "libmunge.so.2 cannot be loaded", fix="install MUNGE (package libmunge2 or munge-libs)"
        ) from error


@cache
def _library() -> ctypes.CDLL:
    """libmunge, for calls that do not wait for munged."""
    library = _loaded(ctypes.PyDLL)
    library.munge_ctx_create.restype = ctypes.c_void_p
    library.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    library.munge_ctx_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p]
    library.munge_ctx_get.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    library.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.munge_strerror.argtypes = [ctypes.c_int]
    library.munge_strerror.restype = ctypes.c_char_p
    return library


@cache
def _set_number() -> ctypes._NamedFuncPointer:
    """``munge_ctx_set`` for options that are numbers; the argument's type depends on the option."""
    function = _library()["munge_ctx_set"]
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    function.restype = ctypes.c_int
    return function


@cache
def _munged() -> ctypes.CDLL:
    """libmunge, for calls that wait for munged."""
    library = _loaded(ctypes.CDLL)
    library.munge_encode.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.munge_decode.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_int),
        ctypes.POINTER(ctypes.c_uint),
        ctypes.POINTER(ctypes.c_uint),
    ]
    return library


@cache
def _free() -> ctypes._NamedFuncPointer:
    free = ctypes.PyDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free.restype = None
    return free


class Munge:
    """``ports.Credentials`` over munged.

    Args:
        socket: munged's socket; empty for libmunge's default.
    """

    def __init__(self, socket: str = "") -> None:
        self.socket = os.fsencode(socket)

    def encode(self, payload: bytes) -> str:
        return self._encoded(payload, {})

    def encrypt(self, payload: bytes, uid: int) -> str:
        return self._encoded(payload, {_OPT_CIPHER: _CIPHER_AES256, _OPT_UID_RESTRICTION: uid})

    def _encoded(self, payload: bytes, options: Mapping[int, int]) -> str:
        library, context = _library(), self._context()
        credential = ctypes.c_void_p()
        try:
            for option, value in options.items():
                code = _set_number()(context, option, value)
                if code != _OK:
                    raise self._error(code, context)
            code = _munged().munge_encode(ctypes.byref(credential), context, payload, len(payload))
            if code != _OK:
                raise self._error(code, context)
            return ctypes.string_at(credential.value or 0).decode("ascii")
        finally:
            _free()(credential)
            library.munge_ctx_destroy(context)

    def decode(self, credential: str) -> Signed:
        try:
            text = credential.encode("ascii")
        except UnicodeEncodeError as error:
            raise Denied("not a MUNGE credential") from error
        library, context = _library(), self._context()
        payload, length = ctypes.c_void_p(), ctypes.c_int()
        uid, gid = ctypes.c_uint(), ctypes.c_uint()
        try:
            code = _munged().munge_decode(
                text, context, ctypes.byref(payload), ctypes.byref(length), ctypes.byref(uid), ctypes.byref(gid)
            )
            if code != _OK:
                raise self._error(code, context)
            content = ctypes.string_at(payload.value, length.value) if payload.value else b""
            made_s, lives_s, address = ctypes.c_long(), ctypes.c_int(), (ctypes.c_ubyte * 4)()
            made = library.munge_ctx_get(context, _OPT_ENCODE_TIME, ctypes.byref(made_s)) == _OK
            lives = library.munge_ctx_get(context, _OPT_TTL, ctypes.byref(lives_s)) == _OK
            placed = library.munge_ctx_get(context, _OPT_ADDR4, ctypes.byref(address)) == _OK
            return Signed(
                content,
                uid.value,
                gid.value,
                ".".join(map(str, address)) if placed and any(address) else "",
                float(made_s.value) if made else None,
                float(lives_s.value) if lives and lives_s.value > 0 else _DEFAULT_TTL_S,
            )
        finally:
            _free()(payload)  # allocated for some refused credentials as well
            library.munge_ctx_destroy(context)

    def _context(self) -> int:
        library = _library()
        context = library.munge_ctx_create()
        if not context:
            raise Unavailable("MUNGE has no memory for a context")
        if self.socket:
            code = library.munge_ctx_set(context, _OPT_SOCKET, self.socket)
            if code != _OK:
                library.munge_ctx_destroy(context)
                raise self._error(code, None)
        made: int = context
        return made

    def _error(self, code: int, context: int | None) -> Unavailable:
        library = _library()
        detail = (library.munge_ctx_strerror(context) if context else None) or library.munge_strerror(code) or b""
        message = f"MUNGE: {detail.decode('utf-8', 'replace')}"
        if code in _BAD_CREDENTIAL:
            fix = "compare clocks and munge keys of the two hosts"
            if code == _UNAUTHORIZED:
                fix = "it is encrypted for another uid: correct [daemon] uid, or the agent's daemon_uid"
            return Denied(message, fix=fix)
        where = self.socket.decode("utf-8", "replace") or "its default socket"
        return Unavailable(message, fix=f"is munged running and listening on {where}?")

"""Pictures, and files that pretend to be some."""

import io
import random
import struct
import zlib

from PIL import Image


def picture(mode="RGB", size=(40, 30), seed=0, **saved):
    """Return a file of random pixels; ``format`` is PNG unless it is said."""
    data = random.Random(seed).randbytes(4 * size[0] * size[1])
    image = Image.frombytes("RGBA", size, data).convert(mode)
    file = io.BytesIO()
    image.save(file, **{"format": "PNG", **saved})
    return file.getvalue()


def plain(size, colour="white", **saved):
    """Return a file of one colour, which is small whatever its size."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, **{"format": "PNG", **saved})
    return file.getvalue()


def animation(num_frames, kind="GIF"):
    colours = [(number % 256, 3 * number % 256, 0) for number in range(num_frames)]
    first, *others = (Image.new("RGB", (8, 8), colour) for colour in colours)
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=others)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def zeros(count):
    """Return zeros, whole millions of them, compressed: a million is, and then repeated."""
    compressor, million = zlib.compressobj(), bytes(10**6)
    start = compressor.compress(million) + compressor.flush(zlib.Z_FULL_FLUSH)
    again = compressor.compress(million) + compressor.flush(zlib.Z_FULL_FLUSH)
    end = struct.pack(">I", zlib.adler32(bytes(count)))
    return start + again * (count // 10**6 - 1) + b"\3\0" + end


def png(width, height, data=b"", more=b"", colour=2, packed=None):
    """Return a PNG file whose header may lie; ``packed`` is data that is compressed already."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = chunk(b"IDAT", packed or zlib.compress(data))
    parts = [chunk(b"IHDR", header), more, body, chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _jpeg_of(width, height):
    """Return a JPEG file with another size in its header."""
    data = bytearray(picture(format="JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def gif(screen, *frames):
    """Return a GIF file of frames (left, top, width, height), each with one code of data."""
    data = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    for frame in frames:
        data += b"," + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x44\x01\0"
    return data + b";"


def _webp_of(width, height, is_animated=False):
    """Return the head of a WebP file, which says a size."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    head = b"WEBPVP8X" + struct.pack("<I", 10) + bytes([2 * is_animated, 0, 0, 0]) + sizes
    head += b"ANIM" + struct.pack("<I", 6) + bytes(6) if is_animated else b""
    return b"RIFF" + struct.pack("<I", len(head)) + head


_JPEG = picture(format="JPEG", size=(200, 200))
_GIF, _WEBP = picture("P", format="GIF"), picture(format="WEBP")
_PNG = picture(size=(60, 60))
_SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/"/></svg>'

#: Name to file and to what the refusal says.
HOSTILE = {
    "empty": (b"", "be one of PNG"),
    "svg": (_SVG, "be one of PNG"),
    "html": (b"<!doctype html><img src=x>", "be one of PNG"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "be one of PNG"),
    "pdf": (b"%PDF-1.7\n", "be one of PNG"),
    "noise": (random.Random(1).randbytes(5000), "be one of PNG"),
    "zeros": (bytes(5000), "be one of PNG"),
    "bmp": (picture(format="BMP"), "be one of PNG"),
    "tiff": (picture(format="TIFF"), "be one of PNG"),
    "ico": (picture(format="ICO"), "be one of PNG"),
    "ppm": (b"P6 99999 99999 255\n", "be one of PNG"),
    "truncated jpeg": (_JPEG[: len(_JPEG) // 2], "be a whole file"),
    "jpeg header": (_JPEG[:20], "be (one of PNG|a whole file)"),
    "truncated png": (_PNG[: len(_PNG) // 2], "be a whole file"),
    "png header": (_PNG[:16], "be (one of PNG|a whole file)"),
    "png of nothing": (png(0, 0), "be (one of PNG|a whole file)"),
    "png without data": (png(20, 20), "be a whole file"),
    "broken checksum": (_PNG[:50] + b"\0\0\0\0" + _PNG[54:], "be (one of PNG|a whole file)"),
    "bomb": (png(30000, 30000, bytes(10**6)), "at most 40000000 pixels"),
    "largest header": (png(2**31 - 1, 2**31 - 1), "at most 40000000 pixels"),
    "long": (png(2**24, 2), "64 times as long"),
    "high": (png(1, 30000), "64 times as long"),
    "too much data": (png(200, 100, packed=zeros(10**8)), None),
    "jpeg bomb": (_jpeg_of(65500, 65500), "at most 40000000 pixels"),
    "texts": (
        png(20, 20, bytes(61 * 20), chunk(b"zTXt", b"a\0\0" + zeros(10**8))),
        "be (one of PNG|a whole file)",
    ),
    "gif of many frames": (animation(300), "one frame"),
    "png of many frames": (animation(5, "PNG"), "one frame"),
    "webp of many frames": (animation(5, "WEBP"), "one frame"),
    "gif bomb": (b"GIF89a\xff\xff\xff\xff\x80\0\0" + bytes(6) + b",", "."),
    "gif larger than its screen": (gif((1, 1), (0, 0, 65535, 65535)), "at most 40000000 pixels"),
    "gif far from its screen": (gif((9, 9), (65000, 65000, 5, 5)), "at most 40000000 pixels"),
    "gif of a large screen": (gif((65535, 65535), (0, 0, 1, 1)), "at most 40000000 pixels"),
    "gif of an empty frame": (gif((4, 4), (0, 0, 0, 0)), "be a whole file"),
    "gif without a frame": (gif((4, 4)), "be one of PNG"),
    "gif of many empty frames": (gif((4, 4), *[(0, 0, 1, 1)] * 10_000), "one frame"),
    "webp header": (_webp_of(16383, 16383), "at most 40000000 pixels"),
    "webp header of frames": (_webp_of(16383, 16383, True), "at most 40000000 pixels"),
    "webp of a wrong length": (_WEBP[:4] + bytes(4) + _WEBP[8:], "be (one of PNG|a whole file)"),
    "png in webp": (b"RIFF" + struct.pack("<I", len(_PNG) + 4) + b"WEBP" + _PNG, "be one of PNG"),
    "gif and zip": (_GIF + b"PK\3\4" + bytes(1000), None),
    "gif and script": (b"GIF89a/*" + _GIF[8:] + b"*/=0;alert(1)", "."),
    "png and html": (_PNG + b"<script>alert(1)</script>", None),
    "jpeg and gif": (_JPEG + _GIF, None),
    "truncated webp": (picture(format="WEBP")[:40], "be (one of PNG|a whole file)"),
}

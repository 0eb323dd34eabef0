"""From the world to pixels: compose (project, light, sort), then paint."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from triptych.contract import Light, Road, Weather
from triptych.scenario import atmosphere, sky
from triptych.scenario.atmosphere import Air, Look
from triptych.scenario.camera import NEAR_M, Camera
from triptych.scenario.config import ScenarioConfig
from triptych.scenario.ground import JUNCTION_LEAD_M, GroundPainter, GroundPiece, Texture, make_texture
from triptych.scenario.mesh import Mesh, Role
from triptych.scenario.props import Instance
from triptych.scenario.road import BEND_AT_M, JUNCTION_M, Layout, Plan
from triptych.scenario.signals import Aspect

VIEW_M = 280.0
"""Nothing beyond this is drawn."""
_PLAIN_PX = 90.0
"""Scenery smaller than this is drawn in its simple version."""
_SHIFT = 3
_ONE = float(1 << _SHIFT)
_SHINING = np.isin(
    np.arange(len(Role)), (Role.GLOW, Role.BRAKE, Role.HEAD, Role.BLINK, Role.RED, Role.YELLOW, Role.GREEN)
)


Glow = tuple[float, float, float, tuple[float, float, float]]
"""x, y, radius in pixels, and colour of the halo of a lamp."""


@dataclass(slots=True)
class _Faces:
    """Per polygon: normal, whether it is seen from both sides, place of its first corner, extent in pixels."""

    nx: npt.NDArray[np.floating]
    ny: npt.NDArray[np.floating]
    nz: npt.NDArray[np.floating]
    two_sided: npt.NDArray[np.bool_]
    x: npt.NDArray[np.float32]
    z: npt.NDArray[np.float32]
    low: npt.NDArray[np.float32]
    high: npt.NDArray[np.float32]


@dataclass(slots=True)
class Drawing:
    """A composed frame: polygons in painting order and where they belong."""

    instances: list[Instance]
    meshes: list[Mesh]
    points: npt.NDArray[np.float32]
    """(V, 2) pixels."""
    z_m: npt.NDArray[np.float32]
    first_vertex: npt.NDArray[np.int64]
    """per instance, plus one for the end"""
    polygon_starts: list[int]
    polygon_ends: list[int]
    polygon_instance: npt.NDArray[np.int64]
    colours: list[list[float]]
    glows: dict[int, Glow]
    look: Look


class Renderer:
    """Everything that depends on the camera and the configuration and is kept between frames."""

    def __init__(self, config: ScenarioConfig) -> None:
        self.config = config
        self.camera = Camera.from_fov(
            config.width_px, config.height_px, config.camera_fov_deg, config.camera_pitch_deg, config.camera_height_m
        )
        self.ground = GroundPainter(self.camera)
        base = config.segments[0].road if config.segments else config.road
        self._base = Road.URBAN if base in (Road.URBAN, Road.CROSSING) else base
        self._textures: dict[tuple[Layout, bool], Texture] = {}
        self._looks: dict[tuple[Weather, Light], Look] = {}
        self._panoramas: dict[tuple[Weather, Light], npt.NDArray[np.uint8]] = {}
        self._air: Air | None = None
        self._look = self.look_of(config.weather, config.light)
        self._lit = False
        self._overlays: dict[tuple[int, bool], list[npt.NDArray[np.uint8]]] = {}
        self._glow_sprites: dict[int, npt.NDArray[np.float32]] = {}
        azimuth = float(np.random.Generator(np.random.PCG64([int(config.seed), 73])).uniform(-2.6, 2.6))
        # direction to the sun, never straight ahead: 0 is behind us
        self._sun = (0.8 * math.sin(azimuth), 0.6, -0.8 * math.cos(azimuth))

    def prepare(self, plan: Plan) -> None:
        """Paint ahead what the drive will need, so that no frame has to wait for it."""
        count = max(1, len(self.config.segments))
        s = 0.0
        for _ in range(count):
            stretch = plan.at(s)
            self._texture(stretch.layout, False)
            if stretch.junction_m is not None:
                self._texture(stretch.layout, True)
            self._panorama(stretch.weather, stretch.light)
            self._sheets(stretch.weather, stretch.light)
            look = self.look_of(stretch.weather, stretch.light)
            self.ground.light(look, look, 0.0)
            if stretch.end_m > 20_000:
                break
            s = stretch.end_m + 0.1

    # ---- things kept

    def look_of(self, weather: Weather, light: Light) -> Look:
        """The look of a weather and a light in this drive."""
        key = (weather, light)
        if key not in self._looks:
            self._looks[key] = atmosphere.make_look(weather, light, int(self.config.seed), self.config.exposure)
        return self._looks[key]

    def look(self, air: Air) -> Look:
        """The look at a place; keeps what depends on it up to date."""
        if air != self._air:
            self._air = air
            a = self.look_of(air.weather, air.light)
            b = self.look_of(air.next_weather, air.next_light)
            self._look = atmosphere.blend(a, b, air.progress) if air.step else a
            self._lit = False
        return self._look

    def _texture(self, layout: Layout, junction: bool) -> Texture:
        key = (layout, junction)
        if key not in self._textures:
            self._textures[key] = make_texture(layout, junction, self.ground.coarseness)
        return self._textures[key]

    def _panorama(self, weather: Weather, light: Light) -> npt.NDArray[np.uint8]:
        key = (weather, light)
        if key not in self._panoramas:
            self._panoramas[key] = sky.make_panorama(
                self.camera.width_px,
                self.ground.first_row,
                round(self.camera.fx_px, 1),
                weather,
                light,
                self._base,
                int(self.config.seed),
                self.config.exposure,
            )
        return self._panoramas[key]

    # ---- composing

    def _choose(
        self,
        instances: list[Instance],
        s_m: float,
        d_m: float,
        yaw_rad: float,
        curve: npt.NDArray[np.float64],
        look: Look,
    ) -> tuple[list[Instance], list[Mesh]]:
        """What may be in the picture, in painting order, each with the mesh for its distance."""
        camera = self.camera
        farthest = min(VIEW_M, 3.6 / look.extinction_per_m)
        # scenery less than three pixels high is left out
        reach, ahead = camera.fx_px / 3.0, s_m + 1.0
        near = [
            i
            for i in instances
            if -12.0 < i.s - s_m < farthest and (i.class_id is not None or i.mesh.size_m * reach > i.s - ahead)
        ]
        if not near:
            return [], []
        place = np.array([(i.s, i.d, i.mesh.radius_m) for i in near])
        z = place[:, 0] - s_m
        x = place[:, 1] - d_m + np.interp(z, BEND_AT_M, curve) - yaw_rad * z
        inside = np.abs(x) - place[:, 2] < (np.maximum(z, 0.0) + place[:, 2]) * (0.5 * camera.width_px / camera.fx_px)
        inside &= z > -place[:, 2]
        chosen = [near[k] for k in np.flatnonzero(inside).tolist()]
        chosen.sort(key=lambda i: (i.bucket, -i.s))
        plain = s_m + 1.0
        scale = camera.fx_px / _PLAIN_PX
        meshes = [
            i.mesh.far if i.mesh.far is not None and i.mesh.size_m * scale < i.s - plain else i.mesh for i in chosen
        ]
        return chosen, meshes

    def compose(
        self,
        instances: list[Instance],
        s_m: float,
        d_m: float,
        yaw_rad: float,
        curve: npt.NDArray[np.float64],
        look: Look,
        time_s: float,
    ) -> Drawing:
        """Project and light all polygons that can be seen, in painting order."""
        camera = self.camera
        blink = (time_s * 1.5) % 1.0 < 0.5
        chosen, meshes = self._choose(instances, s_m, d_m, yaw_rad, curve, look)
        n_vertices = np.array([mesh.vertices.shape[0] for mesh in meshes], np.int64)
        n_polygons = np.array([mesh.starts.shape[0] for mesh in meshes], np.int64)
        first_vertex = np.concatenate([[0], np.cumsum(n_vertices)]).astype(np.int64)
        if not chosen:
            empty = np.zeros((0, 2), np.float32)
            return Drawing([], [], empty, empty[:, 0], first_vertex, [], [], np.zeros(0, np.int64), [], {}, look)
        place = np.array([(i.cos, i.sin, i.s - s_m, i.d - d_m, i.y) for i in chosen], np.float32)
        v: npt.NDArray[np.float32] = np.concatenate([mesh.vertices for mesh in meshes])
        at: npt.NDArray[np.float32] = np.repeat(place, n_vertices, axis=0)
        z: npt.NDArray[np.float32] = v[:, 2] * at[:, 0] - v[:, 0] * at[:, 1] + at[:, 2]
        x: npt.NDArray[np.float32] = v[:, 0] * at[:, 0] + v[:, 2] * at[:, 1] + at[:, 3]
        y = v[:, 1] + at[:, 4]
        x += np.asarray(np.interp(z, BEND_AT_M, curve), np.float32) - np.float32(yaw_rad) * z
        points = camera.project(x, y, z)

        polygon_instance = np.repeat(np.arange(len(chosen)), n_polygons)
        starts = np.concatenate([mesh.starts for mesh in meshes]) + np.repeat(first_vertex[:-1], n_polygons)
        counts = np.concatenate([mesh.counts for mesh in meshes])
        normals = np.concatenate([mesh.normals for mesh in meshes])
        turn = place[polygon_instance, :2]
        nx = normals[:, 0] * turn[:, 0] + normals[:, 2] * turn[:, 1]
        nz = normals[:, 2] * turn[:, 0] - normals[:, 0] * turn[:, 1]
        ny = normals[:, 1]
        x0, y0, z0 = x[starts], y[starts], z[starts]
        facing = nx * x0 + ny * (y0 - camera.height_m) + nz * z0
        two_sided = np.abs(normals).sum(axis=1) < 1e-6
        low = np.minimum.reduceat(points, starts, axis=0)
        high = np.maximum.reduceat(points, starts, axis=0)
        size = high - low
        labelled = np.array([i.class_id is not None for i in chosen])
        seen = (
            (two_sided | (facing < 0))
            & (np.maximum.reduceat(z, starts) > NEAR_M + 0.2)
            & (high[:, 0] > 0)
            & (low[:, 0] < camera.width_px)
            & (high[:, 1] > 0)
            & (low[:, 1] < camera.height_px)
            & (size[:, 0] * size[:, 1] > np.where(labelled[polygon_instance], 1.6, 5.0))
            & (size.min(axis=1) > 0.15)
        )
        keep = np.flatnonzero(seen)
        starts, counts, polygon_instance = starts[keep], counts[keep], polygon_instance[keep]
        faces = _Faces(nx[keep], ny[keep], nz[keep], two_sided[keep], x0[keep], z0[keep], low[keep], high[keep])
        albedo = np.concatenate([mesh.colours for mesh in meshes])[keep]
        roles = np.concatenate([mesh.roles for mesh in meshes])[keep]
        colours, glows = self._light(albedo, roles, faces, chosen, polygon_instance, look, blink)
        return Drawing(
            chosen,
            meshes,
            points,
            z,
            first_vertex,
            starts.tolist(),
            (starts + counts).tolist(),
            polygon_instance,
            colours,
            glows,
            look,
        )

    def _light(
        self,
        albedo: npt.NDArray[np.float32],
        roles: npt.NDArray[np.uint8],
        faces: _Faces,
        chosen: list[Instance],
        polygon_instance: npt.NDArray[np.int64],
        look: Look,
        blink: bool,
    ) -> tuple[list[list[float]], dict[int, Glow]]:
        """Colours of polygons in this light, and the halos of lamps."""
        sx, sy, sz = self._sun
        sun = np.maximum(0.0, sx * faces.nx + sy * faces.ny + sz * faces.nz)
        shade = np.where(faces.two_sided, 1.0, 1.0 - look.sun + look.sun * (0.35 + 1.05 * sun)).astype(np.float32)
        light = shade[:, None] * np.array(look.ambient, np.float32)
        if look.beam > 0:
            turned = np.where(faces.two_sided | (faces.nz < -0.3), 1.0, 0.35)
            lit = atmosphere.beam(look, faces.x, faces.z) * turned
            lit = np.where(roles == Role.RETRO, lit * 2.5 + 0.05, lit)
            light += lit[:, None].astype(np.float32)
        colour = albedo * light
        glows: dict[int, Glow] = {}
        if look.lights > 0.6:
            colour[roles == Role.WINDOW] = (90.0, 165.0, 215.0)
        special = np.flatnonzero(_SHINING[roles])
        for k in special.tolist():
            role = int(roles[k])
            instance = chosen[int(polygon_instance[k])]
            shine, halo = _shine(role, instance, look, blink)
            if shine is None:
                continue
            colour[k] = shine
            if halo > 0:
                a, b = faces.low[k], faces.high[k]
                radius = (0.5 * float(max(b[0] - a[0], b[1] - a[1])) + 0.8) * halo
                if radius > 2.0:
                    glows[k] = (float(a[0] + b[0]) / 2, float(a[1] + b[1]) / 2, radius, shine)
        clear = atmosphere.transmittance(look, faces.z)[:, None]
        # lamps pierce the fog better than surfaces do
        clear = np.where(_SHINING[roles][:, None], np.sqrt(clear), clear)
        fog = np.array(look.fog, np.float32)
        colour = np.clip(colour, 0, 255) * clear + fog * (1 - clear)
        return colour.tolist(), glows

    # ---- painting

    def paint(
        self,
        drawing: Drawing,
        plan: Plan,
        s_m: float,
        d_m: float,
        yaw_rad: float,
        heading_rad: float,
        curve: npt.NDArray[np.float64],
        air: Air,
        frame: int,
        out: npt.NDArray[np.uint8] | None = None,
    ) -> npt.NDArray[np.uint8]:
        """The picture, (height, width, 3) uint8 BGR."""
        camera, ground = self.camera, self.ground
        image = out if out is not None else np.empty((camera.height_px, camera.width_px, 3), np.uint8)
        first = ground.first_row
        sky.view(self._panorama(air.weather, air.light), image[:first], heading_rad + yaw_rad, camera.fx_px)
        if air.step:
            other = np.empty_like(image[:first])
            sky.view(self._panorama(air.next_weather, air.next_light), other, heading_rad + yaw_rad, camera.fx_px)
            cv2.addWeighted(image[:first], 1 - air.progress, other, air.progress, 0, dst=image[:first])

        def offset(z: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            bent = np.interp(z, BEND_AT_M, curve)
            return np.asarray(bent - yaw_rad * z, np.float32)

        if not self._lit:
            ground.light(
                self.look_of(air.weather, air.light), self.look_of(air.next_weather, air.next_light), air.progress
            )
            self._lit = True
        ground.paint(image, self._pieces(plan, s_m), s_m, d_m, offset)
        self._paint_polygons(image, drawing)
        if self.config.hood:
            self._paint_hood(image, drawing.look)
        overlay = self._overlay(air, frame)
        if overlay is not None:
            cv2.add(image, overlay, dst=image)
        return image

    def _paint_polygons(self, image: npt.NDArray[np.uint8], drawing: Drawing) -> None:
        points = np.rint(drawing.points * _ONE).astype(np.int32)
        fill, glows = cv2.fillConvexPoly, drawing.glows
        for k, (start, end, colour) in enumerate(
            zip(drawing.polygon_starts, drawing.polygon_ends, drawing.colours, strict=True)
        ):
            fill(image, points[start:end], colour, 16, _SHIFT)
            if k in glows:
                self._paint_glow(image, *glows[k])

    def _paint_glow(
        self, image: npt.NDArray[np.uint8], x: float, y: float, radius: float, colour: tuple[float, float, float]
    ) -> None:
        r = int(min(radius, 0.12 * self.camera.width_px)) + 1
        sprite = self._glow_sprites.get(r)
        if sprite is None:
            span = np.arange(-r, r + 1, dtype=np.float32) / r
            away = np.sqrt(span[None, :] ** 2 + span[:, None] ** 2)
            sprite = (np.clip(1 - away, 0, 1) ** 2.2 * 0.62).astype(np.float32)
            self._glow_sprites[r] = sprite
        x0, y0 = round(x) - r, round(y) - r
        left, top = max(0, x0), max(0, y0)
        right, bottom = min(image.shape[1], x0 + 2 * r + 1), min(image.shape[0], y0 + 2 * r + 1)
        if left >= right or top >= bottom:
            return
        part = sprite[top - y0 : bottom - y0, left - x0 : right - x0]
        light = (part[:, :, None] * np.array(colour, np.float32)).astype(np.uint8)
        area = image[top:bottom, left:right]
        image[top:bottom, left:right] = cv2.add(area, light)

    def _paint_hood(self, image: npt.NDArray[np.uint8], look: Look) -> None:
        h, w = image.shape[:2]
        rng = np.random.Generator(np.random.PCG64([int(self.config.seed), 47]))
        base = float(rng.uniform(30, 170)) * np.array(look.ambient)
        top, middle = h * (0.95 - 0.05 * float(rng.random())), w * 0.5
        for k in range(4):
            y = top + k * h * 0.012
            points = np.array(
                [(middle + w * 0.62 * t, y + (h - y) * 0.9 * abs(t) ** 2.5) for t in np.linspace(-1, 1, 17)]
                + [(w * 1.2, h + 5), (-w * 0.2, h + 5)]
            )
            tone = np.clip(base * (1.25 - 0.14 * k), 0, 255)
            cv2.fillPoly(image, [np.rint(points * _ONE).astype(np.int32)], tone.tolist(), cv2.LINE_AA, _SHIFT)

    def _overlay(self, air: Air, frame: int) -> npt.NDArray[np.uint8] | None:
        """Sensor noise and rain streaks, from a few prepared sheets shifted differently each frame."""
        sheets = self._sheets(*air.now)
        if not sheets:
            return None
        rng = np.random.Generator(np.random.PCG64([int(self.config.seed), 53, frame]))
        which, x, y = int(rng.integers(0, len(sheets))), int(rng.integers(0, 64)), int(rng.integers(0, 64))
        h, w = self.camera.height_px, self.camera.width_px
        return sheets[which][y : y + h, x : x + w]

    def _sheets(self, weather: Weather, light: Light) -> list[npt.NDArray[np.uint8]]:
        look = self.look_of(weather, light)
        key = (round(self.config.sensor_noise * look.noise), look.rain > 0.5)
        if key not in self._overlays:
            self._overlays[key] = self._make_overlays(*key)
        return self._overlays[key]

    def _make_overlays(self, noise: int, rain: bool) -> list[npt.NDArray[np.uint8]]:
        if noise < 1 and not rain:
            return []
        rng = np.random.Generator(np.random.PCG64([int(self.config.seed), 59]))
        h, w = self.camera.height_px + 64, self.camera.width_px + 64
        sheets = []
        unit = self.camera.width_px / 1280.0
        for _ in range(3 if rain else 1):
            sheet = rng.integers(0, noise + 1, (h, w, 3), dtype=np.uint8)
            if rain:
                drops = np.zeros((h, w), np.uint8)
                for _ in range(260):
                    x, y = rng.uniform(0, w), rng.uniform(-40, h)
                    length = rng.uniform(14, 52) * unit
                    slant = (x / w - 0.5) * 0.5
                    a = (int(x * 8), int(y * 8))
                    b = (int((x + slant * length) * 8), int((y + length) * 8))
                    cv2.line(drops, a, b, int(rng.integers(14, 42)), 1 if unit < 1.2 else 2, cv2.LINE_AA, 3)
                cv2.add(sheet, cv2.merge([drops, drops, drops]), dst=sheet)
            sheets.append(sheet)
        return sheets

    def _pieces(self, plan: Plan, s_m: float) -> list[GroundPiece]:
        pieces: list[GroundPiece] = []
        for stretch in plan.between(s_m, s_m + 420.0):
            normal = self._texture(stretch.layout, False)
            # periodic textures count from a multiple of their period, so that dashes run on from piece to piece
            origin = math.floor(stretch.start_m / normal.period_m) * normal.period_m
            pieces.append(GroundPiece(stretch.start_m, origin, normal, True))
            if stretch.junction_m is not None:
                a, b = stretch.junction_m - JUNCTION_LEAD_M, stretch.junction_m + JUNCTION_M + JUNCTION_LEAD_M
                pieces.append(GroundPiece(a, a, self._texture(stretch.layout, True), False))
                pieces.append(GroundPiece(b, origin, normal, True))
        return pieces


def _shine(role: int, instance: Instance, look: Look, blink: bool) -> tuple[tuple[float, float, float] | None, float]:
    """Colour of a self-lit polygon and size of its halo in radii; None: it is lit like everything else."""
    dark = look.lights
    if role == Role.BRAKE:
        if instance.hazard and blink:
            return (30, 140, 255), 2.0 + dark
        if instance.brakes:
            return (60, 60, 255), 1.6 + 1.6 * dark
        return ((20, 16, 150), 1.5 * dark) if dark > 0.5 and instance.kind != "parked car" else (None, 0.0)
    if role == Role.HEAD:
        return ((225, 245, 255), 2.2 + 3.0 * dark) if dark > 0.5 and instance.kind != "parked car" else (None, 0.0)
    if role == Role.BLINK:
        return ((40, 170, 255), 2.5) if blink else (None, 0.0)
    if role == Role.GLOW:
        return (60, 170, 240), 0.0
    shown = {Role.RED: Aspect.RED, Role.YELLOW: Aspect.AMBER, Role.GREEN: Aspect.GREEN}.get(Role(role))
    if shown is not None and instance.aspect is shown:
        return {Aspect.RED: (60, 50, 255), Aspect.AMBER: (40, 190, 255), Aspect.GREEN: (170, 255, 60)}[
            shown
        ], 1.7 + dark
    return None, 0.0

// Whether somebody came by a link that others were given.

/** Whoever did looks on, whatever else they might do here. */
export function isShared(): boolean {
  return new URLSearchParams(location.search).has("shared");
}

// Entry of the bundle src/isthmus/cli/ui/static/vendor.js: all that the page takes from other projects.
export { h, render } from "preact";
export { useEffect, useMemo, useRef, useState } from "preact/hooks";
export { default as htm } from "htm";
export { default as uPlot } from "uplot";

// The page that shows one desktop and nothing else.

import "../style.css";
import "../shell/theme.svelte";
import { mount } from "svelte";
import Alone from "./Alone.svelte";

const target = document.getElementById("page");
if (target) mount(Alone, { target });

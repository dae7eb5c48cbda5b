// Where the page begins.

import "./style.css";
import { mount } from "svelte";
import App from "./shell/App.svelte";

const target = document.getElementById("page");
if (target) mount(App, { target });

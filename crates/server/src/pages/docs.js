// Shows /openapi.json: endpoints with their parameters, answers and a curl example; schemas; errors.
"use strict";

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};

// A text in which `such words` are code.
const prose = (text) => make("span", {}, ...(text || "").split("`").map((part, index) => index % 2 ? make("code", {}, part) : part));

const nameOf = (reference) => reference.split("/").pop();

// A schema in a few words; names of other schemas are links.
const typeOf = (schema) => {
  if (!schema || Object.keys(schema).length === 0) return make("span", {}, "anything");
  if (schema.$ref) return make("a", { href: `#schema-${nameOf(schema.$ref)}` }, nameOf(schema.$ref));
  const several = schema.oneOf || schema.anyOf || schema.allOf;
  if (several) {
    const span = make("span");
    several.forEach((part, index) => span.append(index ? (schema.allOf ? " and " : " or ") : "", typeOf(part)));
    return span;
  }
  if (schema.enum) return make("code", {}, schema.enum.map((value) => JSON.stringify(value)).join(" | "));
  const type = [].concat(schema.type || "object").join(" or ");
  if (schema.items && typeof schema.items === "object") return make("span", {}, "list of ", typeOf(schema.items));
  return make("span", {}, schema.format ? `${type} (${schema.format})` : type);
};

const table = (headings, rows) =>
  make("div", { class: "scroll", tabindex: "0" }, make("table", {},
    make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell ?? "")))))));

const exampleBody = {
  "/schedule": '{"steps":[{"tool":"shell","command":"echo hello"}]}',
  "/submit": '{"task":"Build me a todo app in React"}',
};

const curl = (method, path, operation) => {
  const address = `${location.origin}${path.replace("{id}", "JOB").replace("{n}", "1").replace("{path}", "hello.txt")}`;
  const parts = ["curl"];
  if (path.endsWith("/events")) parts.push("-N");
  if (path.endsWith(".zip")) parts.push("-OJ");
  if (method === "put") parts.push("-T hello.txt");
  else if (method !== "get") parts.push(`-X ${method.toUpperCase()}`);
  if (method === "post" && operation.requestBody) {
    parts.push(`-H "Content-Type: application/json" -d '${exampleBody[path]}'`);
  }
  parts.push(path === "/status" ? `"${address}?task_id=JOB"` : address);
  return parts.join(" ");
};

const bodyRows = (content) => Object.entries(content || {}).map(([type, { schema }]) => [type, typeOf(schema)]);

const showOperation = (method, path, operation) => {
  const inside = make("div");
  if (operation.description) inside.append(make("p", {}, prose(operation.description)));
  inside.append(make("pre", { tabindex: "0" }, make("code", {}, curl(method, path, operation))));
  if (operation.parameters?.length) {
    inside.append(make("h3", {}, "Parameters"), table(["name", "in", "type", "meaning"],
      operation.parameters.map((p) => [make("code", {}, p.name + (p.required ? "" : "?")), p.in, typeOf(p.schema), prose(p.description)])));
  }
  if (operation.requestBody) {
    inside.append(make("h3", {}, "Body"), table(["content type", "schema"], bodyRows(operation.requestBody.content)));
  }
  const rows = Object.entries(operation.responses).flatMap(([status, response]) => {
    const bodies = bodyRows(response.content);
    return (bodies.length ? bodies : [["", ""]]).map(([type, schema]) => [status, prose(response.description), type, schema]);
  });
  inside.append(make("h3", {}, "Answers"), table(["status", "meaning", "content type", "schema"], rows));
  return make("details", { id: `${method}-${path}` },
    make("summary", {}, make("span", { class: `method ${method}` }, method.toUpperCase()),
      make("code", {}, path), make("span", { class: "dim" }, operation.summary || "")), inside);
};

const propertiesOf = (schema) =>
  table(["field", "type", "meaning"], Object.entries(schema.properties).map(([name, property]) => [
    make("code", {}, name + ((schema.required || []).includes(name) ? "" : "?")), typeOf(property), prose(property.description)]));

const showSchema = (name, schema) => {
  const inside = make("div");
  if (schema.description) inside.append(make("p", {}, prose(schema.description)));
  if (schema.properties) inside.append(propertiesOf(schema));
  else inside.append(make("p", {}, typeOf(schema)));
  for (const part of schema.oneOf || schema.allOf || []) {
    if (part.properties) inside.append(make("p", { class: "dim" }, prose(part.description)), propertiesOf(part));
  }
  return make("details", { id: `schema-${name}` }, make("summary", {}, make("code", {}, name)), inside);
};

const show = (api) => {
  const main = document.getElementById("document");
  main.replaceChildren(make("h1", {}, `${api.info.title} API`),
    make("p", {}, prose(api.info.description)),
    make("p", { class: "dim" }, `Version ${api.info.version}. `, make("a", { href: "/openapi.json" }, "The document itself"),
      "; ", make("a", { href: "#errors" }, "errors"), "; ", make("a", { href: "#schemas" }, "schemas"), "."));
  for (const tag of api.tags) {
    main.append(make("h2", { id: tag.name }, tag.name), make("p", { class: "dim" }, tag.description));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(item)) {
        if (operation.tags?.includes(tag.name)) main.append(showOperation(method, path, operation));
      }
    }
  }
  const errors = table(["code", "status", "meaning"], api["x-problems"].map((p) => [
    make("code", { id: `error-${p.code}` }, p.code), String(p.status), p.title]));
  main.append(make("h2", { id: "errors" }, "errors"),
    make("p", { class: "dim" }, "Every error is a problem document (RFC 9457). Rely on its code and status; the words may change."), errors);
  main.append(make("h2", { id: "schemas" }, "schemas"),
    ...Object.entries(api.components.schemas).map(([name, schema]) => showSchema(name, schema)));
};

// A link to something folded opens it.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
};

fetch("/openapi.json")
  .then((answer) => (answer.ok ? answer.json() : Promise.reject(new Error(`status ${answer.status}`))))
  .then(show)
  .then(() => { addEventListener("hashchange", reveal); reveal(); })
  .catch((error) => { document.getElementById("loading").textContent = `The document could not be read: ${error.message}`; });

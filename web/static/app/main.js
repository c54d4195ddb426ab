// Starts the pages: who is logged in, the frame around every page, and which one an address shows.
import { html, render, useEffect, useState } from "./html.js";
import { whenLoggedOut } from "./api.js";
import { go, match, onClick, placeOf, useLocation } from "./router.js";
import { load, logout, session, isAdmin } from "./session.js";
import { useConnection, watch } from "./live.js";
import { Band, Empty, Failed, Head, Toasts } from "./ui.js";
import { applyTheme, nextTheme, themeName } from "./theme.js";
import { lazy } from "./lazy.js";
import { Login } from "./pages/login.js";

const Home = lazy("Home", () => import("./pages/home.js"));
const Workspaces = lazy("Workspaces", () => import("./pages/workspaces.js"));
const WorkspacePage = lazy("WorkspacePage", () => import("./pages/workspaces.js"));
const Project = lazy("Project", () => import("./pages/project.js"));
const Experiment = lazy("Experiment", () => import("./pages/experiment.js"));
const Trial = lazy("Trial", () => import("./pages/trial.js"));
const Compare = lazy("Compare", () => import("./pages/compare.js"));
const Launch = lazy("Launch", () => import("./pages/launch.js"));
const Queue = lazy("Queue", () => import("./pages/queue.js"));
const Cluster = lazy("Cluster", () => import("./pages/cluster.js"));
const Tasks = lazy("Tasks", () => import("./pages/tasks.js"));
const TaskPage = lazy("TaskPage", () => import("./pages/tasks.js"));
const Wait = lazy("Wait", () => import("./pages/tasks.js"));
const Models = lazy("Models", () => import("./pages/models.js"));
const ModelPage = lazy("ModelPage", () => import("./pages/models.js"));
const Campaigns = lazy("Campaigns", () => import("./pages/campaigns.js"));
const CampaignPage = lazy("CampaignPage", () => import("./pages/campaigns.js"));
const Templates = lazy("Templates", () => import("./pages/templates.js"));
const Webhooks = lazy("Webhooks", () => import("./pages/webhooks.js"));
const Admin = lazy("Admin", () => import("./pages/admin.js"));
const Account = lazy("Account", () => import("./pages/account.js"));
const Components = lazy("Components", () => import("./pages/components.js"));

/** Addresses below `/det`, and what they show. @type {[string, any][]} */
const PAGES = [
  ["/", Home],
  ["/dashboard", Home],
  ["/workspaces", Workspaces],
  ["/workspaces/:id/:tab?", WorkspacePage],
  ["/projects/:id/:tab?", Project],
  ["/compare", Compare],
  ["/launch", Launch],
  ["/experiments/:experiment/trials/:id/:tab?", Trial],
  ["/experiments/:id/:tab?/*", Experiment],
  ["/trials/:id/:tab?", Trial],
  ["/jobs", Queue],
  ["/cluster/:tab?", Cluster],
  ["/resourcepool/:pool/:tab?", Queue],
  ["/logs", Cluster],
  ["/tasks", Tasks],
  ["/tasks/:id/:tab?", TaskPage],
  ["/interactive/:id/*", Wait],
  ["/wait/:type/:id", Wait],
  ["/models", Models],
  ["/models/:name/:tab?", ModelPage],
  ["/campaigns", Campaigns],
  ["/campaigns/:id/:tab?", CampaignPage],
  ["/templates", Templates],
  ["/webhooks", Webhooks],
  ["/admin/:tab?", Admin],
  ["/account", Account],
  ["/components", Components],
  ["/:type/:id/logs", TaskPage],
];

/** @type {[string, string, string][]} address, name, what else belongs to it */
const MENU = [
  ["/det/dashboard", "Home", "/"],
  ["/det/workspaces", "Workspaces", "/projects /experiments /trials /compare"],
  ["/det/tasks", "Tasks", "/interactive /wait"],
  ["/det/jobs", "Queue", "/resourcepool"],
  ["/det/cluster", "Cluster", "/logs"],
  ["/det/models", "Models", ""],
  ["/det/campaigns", "Campaigns", ""],
  ["/det/templates", "Templates", ""],
  ["/det/webhooks", "Webhooks", ""],
];

const AGAIN_MS = 3000;

function App() {
  const { path, query } = useLocation();
  const [state, setState] = useState(/** @type {{is: string, error?: any}} */ ({ is: "loading" }));
  const enter = () =>
    load().then(
      (found) => setState({ is: found ? "in" : "out" }),
      (error) => setState({ is: "failed", error }),
    );
  useEffect(() => {
    enter();
    whenLoggedOut(() => setState({ is: "out" }));
  }, []);
  useEffect(() => {
    // The API was away, or too busy to say who this is: nobody has to come back and press a button.
    if (state.is !== "failed" || (state.error?.status >= 400 && state.error.status < 500)) return;
    const timer = setTimeout(enter, AGAIN_MS);
    return () => clearTimeout(timer);
  }, [state]);
  if (state.is === "loading") return null;
  if (state.is === "failed") return html`<main class="login"><${Failed} error=${state.error} again=${enter} /></main>`;
  if (state.is === "out" || path === "/login")
    return html`<${Login} target=${path === "/login" ? query.get("redirect") : location.pathname + location.search} onLogin=${() => setState({ is: "in" })} />`;
  if (path === "/logout") {
    logout().finally(() => go("/det/login", { replace: true }));
    return null;
  }
  const found = match(path, PAGES);
  return html`<${Frame} path=${path}>${
    found ? html`<${found.page} key=${PAGES.findIndex(([, page]) => page === found.page) + JSON.stringify({ ...found.params, tab: undefined })} ...${found.params} />` : html`<${Head} title="There is no such page" /><${Empty} title="Its address leads nowhere"><a href="/det/">To the start</a></${Empty}>`
  }</${Frame}><${Toasts} />`;
}

/** @param {{path: string, children?: any}} props */
function Frame({ path, children }) {
  const { isAway, isOld } = useConnection();
  const [open, setOpen] = useState(false);
  const [theme, setTheme] = useState(themeName());
  useEffect(() => setOpen(false), [path]);
  useEffect(() => watch("agents", {}), []); // so that each page knows whether the API is there
  const here = (/** @type {string} */ address, /** @type {string} */ also) => {
    const own = address.replace("/det", "");
    return [own, ...also.split(" ")].some((each) => each && (each === "/" ? path === "/" : path === each || path.startsWith(`${each}/`)));
  };
  const menu = isAdmin() ? [...MENU, ["/det/admin", "Admin", ""]] : MENU;
  return html`<a class="skip" href="#content">Skip to the content</a>
    <div class="top"><button aria-label="menu" aria-expanded=${open} onClick=${() => setOpen(!open)}>☰</button><a class="brand" href="/det/">Undeterred</a></div>
    <div class="frame">
      <nav class="side ${open ? "open" : ""}" aria-label="main">
        <div class="row spread"><a class="brand" href="/det/">Undeterred</a>${open && html`<button class="quiet" aria-label="close the menu" onClick=${() => setOpen(false)}>✕</button>`}</div>
        ${menu.map(([to, text, also]) => html`<a class="item" key=${to} href=${to} aria-current=${here(to, also) ? "page" : null}>${text}</a>`)}
        <div class="foot"><a class="button" href="/det/launch">New experiment</a>
          <button class="quiet" onClick=${() => { applyTheme(nextTheme()); setTheme(themeName()); }}>Theme: ${theme}</button>
          <a href="/det/account">${session()?.user?.displayName || session()?.user?.username}</a>
          <a href="/docs/rest-api" target="_blank" rel="noreferrer">REST API</a></div>
      </nav>
      <main class="main" id="content" tabindex="-1">
        ${session()?.master?.clusterMessage?.message && html`<${Band}>${session()?.master?.clusterMessage.message}</${Band}>`}
        ${isAway && html`<${Band} bad>The API does not answer. This page goes on by itself when it is back; training goes on meanwhile.</${Band}>`}
        ${isOld && html`<${Band}>The cluster has newer pages. <button class="small" onClick=${() => location.reload()}>Load them</button></${Band}>`}
        ${children}
      </main>
    </div>`;
}

// The page's module and its first answers come while the session is asked for.
const first = match(placeOf(), PAGES);
first?.page.start(first.params);
applyTheme(themeName());
document.addEventListener("click", onClick);
const root = document.getElementById("app");
if (root) render(html`<${App} />`, root);

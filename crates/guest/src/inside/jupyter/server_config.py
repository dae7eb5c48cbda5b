# How the sandbox's JupyterLab is set up. It is reached through the wire only, by those whom the server
# let in, so it asks for no token: who is in the sandbox can run everything anyway.
import os

import bellglass_framed

bellglass_framed.apply()
c = get_config()  # noqa: F821

folder = os.environ["BELLGLASS_JUPYTER"]
c.ServerApp.sock = os.path.join(folder, "socket")
c.ServerApp.sock_mode = "0600"
c.ServerApp.base_url = os.environ["BELLGLASS_JUPYTER_BASE"]
c.ServerApp.root_dir = os.environ["BELLGLASS_WORKSPACE"]
c.ServerApp.open_browser = False
c.ServerApp.allow_remote_access = True
c.ServerApp.allow_origin = "*"
c.ServerApp.disable_check_xsrf = True
c.ServerApp.quit_button = False
# There are terminals enough, and looking for language servers takes longer than all the rest.
c.ServerApp.terminals_enabled = False
c.ServerApp.jpserver_extensions = {
    "jupyterlab": True,
    "jupyter_lsp": False,
    "jupyter_server_terminals": False,
}
c.IdentityProvider.token = ""
c.PasswordIdentityProvider.allow_password_change = False
c.PasswordIdentityProvider.password_required = False
# The page that shows it is of another origin; which ones may, the proxy in front says.
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": "frame-ancestors *"}}

c.MappingKernelManager.kernel_manager_class = "bellglass_kernels.SharedKernelManager"
c.KernelSpecManager.ensure_native_kernel = False
c.KernelSpecManager.allowed_kernelspecs = {"python3", "deno"}
# Nothing is fetched from outside, and nobody is asked for news.
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"
c.LabApp.extension_manager = "readonly"

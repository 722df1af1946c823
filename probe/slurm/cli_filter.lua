-- SPDX-License-Identifier: Apache-2.0
-- Written by `probe slurm install --client`. In slurm.conf: CliFilterPlugins=lua

local loaded, probe_hook = pcall(dofile, "@HOOK@")

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  if loaded then pcall(probe_hook.cli_filter, options) end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end

return slurm.SUCCESS

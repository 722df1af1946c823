-- SPDX-License-Identifier: Apache-2.0
-- Written by `probe slurm install`. In slurm.conf: JobSubmitPlugins=lua

local loaded, probe_hook = pcall(dofile, "@HOOK@")

function slurm_job_submit(job_desc, part_list, submit_uid)
  if loaded then pcall(probe_hook.job_submit, job_desc) end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS

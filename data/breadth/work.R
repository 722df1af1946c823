# A linear model, a bootstrap, an eigenvalue problem, and a simulation: four phases.
set.seed(2011)
n <- 60000
x <- matrix(rnorm(n * 8), n)
y <- x %*% 1:8 + rnorm(n)
fit <- lm(y ~ x)
means <- replicate(15000, mean(sample(y[1:2000], replace = TRUE)))
values <- eigen(crossprod(matrix(rnorm(700 * 700), 700)))$values
walk <- 0
for (i in 1:9000000) walk <- walk * 0.99 + (i %% 7) - 3
cat(round(coef(fit)[2], 4), round(sd(means), 4), round(values[1], 2), round(walk, 4), "\n")
